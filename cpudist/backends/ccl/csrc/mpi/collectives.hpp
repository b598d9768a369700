// Collectives as messages between pairs of ranks; each is a coroutine for one call, or for a piece of one.
//
// In step k a rank sends to the rank k places above it and receives from the rank k places below. So no two ranks send
// to the same rank in a step. In MPI's own collectives several do, and a slow network then drops packets. With small
// messages several steps are made at once. A sum is added on one rank, or on all in one order, so every rank has the
// same bits.
#pragma once

#include "../compressed_sum.hpp"
#include "../kernels/reduce.hpp"
#include "channel.hpp"

namespace cpudist::mpi {

// The peers of a rank: in step k it sends to `to(k)` and receives from `from(k)`.
struct Peers {
  explicit Peers(const Channel& channel) : rank(channel.rank()), ranks(channel.ranks()) {}
  int to(int step) const { return (rank + step) % ranks; }
  int from(int step) const { return (rank - step + ranks) % ranks; }

  int rank;
  int ranks;
};

// Where rank `from`'s buffer is in `received`, which has the buffers of all ranks except `rank`.
inline std::byte* place_of(int from, int rank, std::byte* received, size_t bytes) {
  return received + static_cast<size_t>(from < rank ? from : from - 1) * bytes;
}

// Reductions with at most this many bytes to all peers together take one step, because latency dominates.
constexpr size_t kOneStepBytes = size_t{64} << 10;

// How many steps, with messages of so many bytes, a rank begins without waiting, at least one: a switch must be able to
// buffer what one rank receives in them. `exchange` begins twice as many.
inline int steps_at_once(size_t bytes) {
  constexpr size_t kMost = size_t{256} << 10;
  constexpr size_t kMostSteps = 1024;
  return static_cast<int>(std::clamp<size_t>(kMost / std::max<size_t>(bytes, 1), 1, kMostSteps));
}

using kernels::Combination;

// inputs[r] goes to rank r, and outputs[r] comes from it; counts are in bytes. This rank's own data is copied.
Coroutine exchange(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes);

// A large allgather: shares go round in a ring. bytes[r] is the share of rank r.
Coroutine all_gather(Channel& channel, int tag, const std::byte* input, std::vector<std::byte*> outputs,
                     std::vector<size_t> bytes);

// If `tree`, sends data down a binomial tree from the root; otherwise along a chain of ranks, piece after piece.
Coroutine broadcast(Channel& channel, int tag, std::byte* data, size_t bytes, int root, bool tree);

// inputs[r], of counts[r] elements, is this rank's contribution to rank r's output.
Coroutine reduce_scatter(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination);

// Every rank reduces its share of the elements, and sends the result to the root, or to all ranks.
Coroutine reduce(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                 Combination combination, int root);

// The same in one step: every rank sends all its elements to the root or to all ranks, which reduce them.
Coroutine reduce_at_once(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                         Combination combination, int root);

Coroutine compressed_allreduce(Channel& channel, int tag, CompressedSum sum);

}  // namespace cpudist::mpi
