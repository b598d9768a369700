// Collectives as messages between pairs of ranks; each is a coroutine for one call, or for a piece of one.
//
// In step k a rank sends to the rank k places above it and receives from the one k places below. So in a step no two
// ranks send to the same one; MPI's own collectives do so, and a slow network drops packets then. With small messages
// several steps are made at once. Sums are added in the order of ranks, on one rank for all, so every rank receives the
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

// Where the buffer of `from` is in `received`, which has the buffers of all ranks but this one.
inline std::byte* place_of(int from, int rank, std::byte* received, size_t bytes) {
  return received + static_cast<size_t>(from < rank ? from : from - 1) * bytes;
}

// Reductions with no more bytes than this to all peers together take one step: their time is latency.
constexpr size_t kOneStepBytes = size_t{64} << 10;

// How many steps with messages of so many bytes a rank makes without waiting: a switch can hold what then goes to one
// rank.
inline int steps_at_once(size_t bytes) {
  constexpr size_t kMost = size_t{256} << 10;
  constexpr size_t kMostSteps = 1024;
  return static_cast<int>(std::clamp<size_t>(kMost / std::max<size_t>(bytes, 1), 1, kMostSteps));
}

using kernels::Combination;

// inputs[r] goes to rank r, and outputs[r] comes from it; counts are in bytes. The own data is copied.
Coroutine exchange(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes);

// A large allgather: shares go round from rank to rank. bytes[r] is the share of rank r.
Coroutine all_gather(Channel& channel, int tag, const std::byte* input, std::vector<std::byte*> outputs,
                     std::vector<size_t> bytes);

// Down a binary tree from the root if the data is small, otherwise from rank to rank: then pieces follow each other.
Coroutine broadcast(Channel& channel, int tag, std::byte* data, size_t bytes, int root, bool tree);

// inputs[r], of counts[r] elements, is this rank's contribution to rank r's output.
Coroutine reduce_scatter(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination);

// Every rank adds its share of the elements, and sends the result to the root, or to all ranks.
Coroutine reduce(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                 Combination combination, int root);

// The same in one step: every rank sends all to the root, or to all ranks, which reduce it.
Coroutine reduce_at_once(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                         Combination combination, int root);

Coroutine compressed_allreduce(Channel& channel, int tag, CompressedSum sum);

}  // namespace cpudist::mpi
