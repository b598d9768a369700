// Messages from one rank to another, on the group's first channel. Each ordered pair of ranks has a control block at
// either end:
//
//   SendControl     written by the sender: how many pieces it has sent
//   ReceiveControl  written by the receiver: how many pieces it has taken, and how many messages it has begun to await
//
// Short messages are stored in the control block itself, eager ones of up to 64 KB in a buffer of the pair, so sending
// completes without the receiver. Longer ones are rendezvous messages: they go in pieces through a buffer of the
// sender, which the sender takes only once the receiver waits for the message. So a message that nobody receives cannot
// block messages to other ranks. A part of a buffer is reused when the receiver has taken its piece.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "channel.hpp"

namespace cpudist::shared_memory {

class Messages {
 public:
  explicit Messages(Channel& channel);

  // At most one send and one receive may be in flight per peer. Both ends give the same number of bytes.
  Coroutine send(const std::byte* data, size_t bytes, int destination);
  Coroutine receive(std::byte* data, size_t bytes, int source);

 private:
  struct Pair {
    uint64_t messages = 0;    // begun, including the one in flight
    uint64_t pieces = 0;      // sent or received so far, over all messages
    uint64_t in_control = 0;  // the piece that the control block holds, or held last
    uint64_t in_eager = 0;    // the same for the eager buffer
  };

  Coroutine send_eager(const std::byte* data, size_t bytes, int destination);
  Coroutine send_rendezvous(const std::byte* data, size_t bytes, int destination);

  // Where a short or an eager message lies; null for a longer one.
  std::byte* place(size_t bytes, int from, int to);

  Channel& channel_;
  std::vector<Pair> sent_;      // by destination
  std::vector<Pair> received_;  // by source
  std::array<bool, kBuffers> buffer_taken_ = {};
};

}  // namespace cpudist::shared_memory
