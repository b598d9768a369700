// The collectives as sequences of steps on a channel. Every rank of a group goes through the same steps in the same
// order.
//
// Large messages go in pieces that fit the slots, so that a rank's data are still in a cache when the next rank reads
// them. Every result is computed once, or by every rank in the same order of ranks, so all ranks have the same bits.
// Arguments are those of transport.hpp, with bytes in place of counts and types where data only moves.
#pragma once

#include <vector>

#include "../kernels/reduce.hpp"
#include "channel.hpp"

namespace cpudist::shared_memory {

using kernels::Combination;

Coroutine barrier(Channel& channel);
Coroutine broadcast(Channel& channel, std::byte* data, size_t bytes, int root);

// The result goes to rank `receiver`, or to all ranks.
Coroutine allreduce(Channel& channel, const std::byte* input, std::byte* output, size_t count, Combination combination,
                    int receiver);

Coroutine allgather(Channel& channel, const std::byte* input, std::vector<std::byte*> outputs,
                    std::vector<size_t> bytes);
Coroutine reduce_scatter(Channel& channel, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination);
Coroutine alltoall(Channel& channel, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes);

}  // namespace cpudist::shared_memory
