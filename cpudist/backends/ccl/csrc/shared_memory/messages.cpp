#include "messages.hpp"

#include <algorithm>
#include <cstring>

namespace cpudist::shared_memory {

Messages::Messages(Channel& channel)
    : channel_(channel), sent_(static_cast<size_t>(channel.ranks())), received_(static_cast<size_t>(channel.ranks())) {}

// Holds when a counter of the peer has reached a value.
class Reached final : public Condition {
 public:
  Reached(int peer, const std::atomic<uint64_t>& counter, uint64_t value)
      : peer_(peer), counter_(counter), value_(value) {}
  bool holds() override { return counter_.load(std::memory_order_acquire) >= value_; }
  int awaited_rank() override { return peer_; }

 private:
  int peer_;
  const std::atomic<uint64_t>& counter_;
  uint64_t value_;
};

// Holds when a buffer is free.
class FreeBuffer final : public Condition {
 public:
  explicit FreeBuffer(const std::array<bool, kBuffers>& taken) : taken_(taken) {}
  bool holds() override { return std::find(taken_.begin(), taken_.end(), false) != taken_.end(); }

 private:
  const std::array<bool, kBuffers>& taken_;
};

std::byte* Messages::place(size_t bytes, int from, int to) {
  if (bytes <= kPayload) return channel_.send_control(from, to).payload;
  return bytes <= channel_.eager_bytes() ? channel_.eager_buffer(from, to) : nullptr;
}

Coroutine Messages::send(const std::byte* data, size_t bytes, int destination) {
  const bool eager = bytes <= std::max(kPayload, channel_.eager_bytes());
  return eager ? send_eager(data, bytes, destination) : send_rendezvous(data, bytes, destination);
}

// Waits only until the receiver has taken the previous message from the same place, the control block or the eager
// buffer. One message in each of the two places may be in flight at the same time.
Coroutine Messages::send_eager(const std::byte* data, size_t bytes, int destination) {
  Pair& pair = sent_[destination];
  uint64_t& before = bytes <= kPayload ? pair.in_control : pair.in_eager;
  ++pair.messages;
  co_await Reached(destination, channel_.receive_control(channel_.rank(), destination).pieces, before);
  if (bytes > 0) std::memcpy(place(bytes, channel_.rank(), destination), data, bytes);
  before = ++pair.pieces;
  channel_.send_control(channel_.rank(), destination).pieces.store(before, std::memory_order_release);
}

Coroutine Messages::send_rendezvous(const std::byte* data, size_t bytes, int destination) {
  Pair& pair = sent_[destination];
  SendControl& sent = channel_.send_control(channel_.rank(), destination);
  ReceiveControl& received = channel_.receive_control(channel_.rank(), destination);
  co_await Reached(destination, received.expected, ++pair.messages);
  co_await FreeBuffer(buffer_taken_);
  const auto buffer =
      static_cast<size_t>(std::find(buffer_taken_.begin(), buffer_taken_.end(), false) - buffer_taken_.begin());
  buffer_taken_[buffer] = true;
  sent.buffer = buffer;
  for (size_t offset = 0; offset < bytes; offset += channel_.part_bytes()) {
    const uint64_t piece = ++pair.pieces;
    if (piece > kBufferParts) co_await Reached(destination, received.pieces, piece - kBufferParts);
    const size_t length = std::min(bytes - offset, channel_.part_bytes());
    std::memcpy(channel_.buffer(channel_.rank(), buffer, piece), data + offset, length);
    sent.pieces.store(piece, std::memory_order_release);
  }
  co_await Reached(destination, received.pieces, pair.pieces);
  buffer_taken_[buffer] = false;
}

Coroutine Messages::receive(std::byte* data, size_t bytes, int source) {
  Pair& pair = received_[source];
  SendControl& sent = channel_.send_control(source, channel_.rank());
  ReceiveControl& received = channel_.receive_control(source, channel_.rank());
  received.expected.store(++pair.messages, std::memory_order_release);

  const std::byte* const eager = place(bytes, source, channel_.rank());
  size_t offset = 0;
  do {
    const uint64_t piece = pair.pieces + 1;
    co_await Reached(source, sent.pieces, piece);
    const std::byte* const from = eager ? eager : channel_.buffer(source, sent.buffer, piece);
    const size_t length = eager ? bytes : std::min(bytes - offset, channel_.part_bytes());
    if (length > 0) std::memcpy(data + offset, from, length);
    offset += length;
    pair.pieces = piece;
    received.pieces.store(piece, std::memory_order_release);
  } while (offset < bytes);
}

}  // namespace cpudist::shared_memory
