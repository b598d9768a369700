// Messages from one rank to another, on a board. Each ordered pair of ranks has a line at either end:
//
//   Letter   written by the sender: how many pieces it has sent
//   Receipt  written by the receiver: how many pieces it has taken, and for how many messages it has begun to wait
//
// A short message is stored in the letter itself, one of up to 64 KB in the pair's parcel, so sending completes without
// the receiver. A long one goes in pieces through one of the sender's buffers. The sender takes a buffer only once the receiver waits for the message, so a
// message that nobody receives cannot block messages to other ranks. A part of a buffer is written again when the
// receiver has taken the piece that it held.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "board.hpp"

namespace cpudist::shared_memory {

class Messages {
 public:
  explicit Messages(Board& board);

  // At most one of each in flight per peer. Both ends give the same number of bytes.
  Coroutine send(const std::byte* data, size_t bytes, int destination);
  Coroutine receive(std::byte* data, size_t bytes, int source);

 private:
  struct Pair {
    uint64_t messages = 0;  // begun, including the one in flight
    uint64_t pieces = 0;    // of all messages before the one in flight
    uint64_t letter = 0;    // the piece that the letter holds, or held last
    uint64_t parcel = 0;    // the same of the parcel
  };

  Coroutine send_at_once(const std::byte* data, size_t bytes, int destination);
  Coroutine send_long(const std::byte* data, size_t bytes, int destination);

  // Where a message lies whose sender does not wait for the receiver; null for a longer one.
  std::byte* place(size_t bytes, int from, int to);

  Board& board_;
  std::vector<Pair> sent_;      // by destination
  std::vector<Pair> received_;  // by source
  std::array<bool, kBuffers> buffer_taken_ = {};
};

}  // namespace cpudist::shared_memory
