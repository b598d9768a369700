// The collectives as sequences of steps on a board. Every rank of a group goes through the same steps in the same
// order.
//
// Large messages go in pieces that fit the slots, so what one rank has written is still in a cache near by when the
// next one reads it. Every result is computed once, or by everybody in the same order of ranks: all ranks have the same
// bits. Arguments as in transport.hpp; bytes and element widths take the place of types where data only moves.
#pragma once

#include <vector>

#include "board.hpp"
#include "kernels.hpp"

namespace cpudist::shared_memory {

// How one rank's elements are combined with the others'.
struct Combination {
  Reduce kernel;
  size_t width;  // bytes of an element
};

constexpr int kEverybody = -1;

Coroutine barrier(Board& board);
Coroutine broadcast(Board& board, std::byte* data, size_t bytes, int root);

// The result goes to rank `receiver`, or to kEverybody.
Coroutine allreduce(Board& board, const std::byte* input, std::byte* output, size_t count, Combination combination,
                    int receiver);

Coroutine allgather(Board& board, const std::byte* input, std::vector<std::byte*> outputs, std::vector<size_t> bytes);
Coroutine reduce_scatter(Board& board, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination);
Coroutine alltoall(Board& board, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes);

}  // namespace cpudist::shared_memory
