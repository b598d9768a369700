#include "messages.hpp"

#include <algorithm>
#include <cstring>

namespace cpudist::shared_memory {

Messages::Messages(Board& board)
    : board_(board), sent_(static_cast<size_t>(board.ranks())), received_(static_cast<size_t>(board.ranks())) {}

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
  if (bytes <= Letter::kPayload) return board_.letter(from, to).payload;
  return bytes <= board_.parcel_bytes() ? board_.parcel(from, to) : nullptr;
}

Coroutine Messages::send(const std::byte* data, size_t bytes, int destination) {
  const bool at_once = bytes <= std::max(Letter::kPayload, board_.parcel_bytes());
  return at_once ? send_at_once(data, bytes, destination) : send_long(data, bytes, destination);
}

// Waits only until the receiver has taken the message that lay there before. A short one and a parcel may be on their
// way together.
Coroutine Messages::send_at_once(const std::byte* data, size_t bytes, int destination) {
  Pair& pair = sent_[destination];
  uint64_t& before = bytes <= Letter::kPayload ? pair.letter : pair.parcel;
  ++pair.messages;
  co_await Reached(destination, board_.receipt(board_.rank(), destination).pieces, before);
  if (bytes > 0) std::memcpy(place(bytes, board_.rank(), destination), data, bytes);
  before = ++pair.pieces;
  board_.letter(board_.rank(), destination).pieces.store(before, std::memory_order_release);
}

Coroutine Messages::send_long(const std::byte* data, size_t bytes, int destination) {
  Pair& pair = sent_[destination];
  Letter& letter = board_.letter(board_.rank(), destination);
  Receipt& receipt = board_.receipt(board_.rank(), destination);
  co_await Reached(destination, receipt.expected, ++pair.messages);
  co_await FreeBuffer(buffer_taken_);
  const auto buffer =
      static_cast<size_t>(std::find(buffer_taken_.begin(), buffer_taken_.end(), false) - buffer_taken_.begin());
  buffer_taken_[buffer] = true;
  letter.buffer = buffer;
  for (size_t offset = 0; offset < bytes; offset += board_.part_bytes()) {
    const uint64_t piece = ++pair.pieces;
    if (piece > kBufferParts) co_await Reached(destination, receipt.pieces, piece - kBufferParts);
    const size_t length = std::min(bytes - offset, board_.part_bytes());
    std::memcpy(board_.buffer(board_.rank(), buffer, piece), data + offset, length);
    letter.pieces.store(piece, std::memory_order_release);
  }
  co_await Reached(destination, receipt.pieces, pair.pieces);
  buffer_taken_[buffer] = false;
}

Coroutine Messages::receive(std::byte* data, size_t bytes, int source) {
  Pair& pair = received_[source];
  Letter& letter = board_.letter(source, board_.rank());
  Receipt& receipt = board_.receipt(source, board_.rank());
  receipt.expected.store(++pair.messages, std::memory_order_release);

  const std::byte* const at_once = place(bytes, source, board_.rank());
  size_t offset = 0;
  do {
    const uint64_t piece = pair.pieces + 1;
    co_await Reached(source, letter.pieces, piece);
    const std::byte* const from = at_once ? at_once : board_.buffer(source, letter.buffer, piece);
    const size_t length = std::min(bytes - offset, board_.part_bytes());
    if (length > 0) std::memcpy(data + offset, from, length);
    offset += length;
    pair.pieces = piece;
    receipt.pieces.store(piece, std::memory_order_release);
  } while (offset < bytes);
}

}  // namespace cpudist::shared_memory
