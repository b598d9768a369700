// Messages from one rank to another, on a board. Each ordered pair of ranks has a line at either end:
//
//   Letter   written by the sender: how many pieces it has sent so far
//   Receipt  written by the receiver: how many it has taken, and how many messages it has begun to wait for
//
// A short message stands in the letter itself and needs no receiver to be complete. A long one goes in pieces through
// one of the sender's buffers, which it takes only when the receiver is there: a buffer is never held by a message that
// nobody receives, so messages to others cannot be kept waiting by it. A part of a buffer is written again when the
// piece that it held has been taken.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "board.hpp"

namespace cpudist::shared_memory {

class Messages {
 public:
  explicit Messages(Board& board);

  // At most one of each under way per peer. Both ends give the same number of bytes.
  Coroutine send(const std::byte* data, size_t bytes, int destination);
  Coroutine receive(std::byte* data, size_t bytes, int source);

 private:
  struct Pair {
    uint64_t messages = 0;  // begun, the one under way included
    uint64_t pieces = 0;    // of all messages before the one under way
  };

  Coroutine send_short(const std::byte* data, size_t bytes, int destination);
  Coroutine send_long(const std::byte* data, size_t bytes, int destination);

  Board& board_;
  std::vector<Pair> sent_;      // by destination
  std::vector<Pair> received_;  // by source
  std::array<bool, kBuffers> buffer_taken_ = {};
};

}  // namespace cpudist::shared_memory
