#include "collectives.hpp"

#include <bit>
#include <cstring>

#include "../kernels/reduce.hpp"

#if !defined(__clang__)  // GCC 12 takes the lambdas in a coroutine's frame for members of a class that others see
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace cpudist::mpi {

namespace {

// The division of `count` elements among the ranks.
struct Division {
  size_t begin(int rank) const { return count * static_cast<size_t>(rank) / static_cast<size_t>(ranks); }
  size_t of(int rank) const { return begin(rank + 1) - begin(rank); }

  size_t count;
  int ranks;
};

// The buffers to reduce, in the order of ranks: `own`, and those of the other ranks one after the other in `received`.
std::vector<const void*> in_order(int rank, int ranks, const std::byte* own, const std::byte* received, size_t bytes) {
  std::vector<const void*> sources;
  for (int r = 0; r < ranks; ++r) {
    sources.push_back(r == rank ? own : received);
    if (r != rank) received += bytes;
  }
  return sources;
}

void combine(const Combination& combination, const std::vector<const void*>& sources, std::byte* output, size_t count) {
  const auto ranks = static_cast<int>(sources.size());
  if (count > 0) combination.kernel(output, nullptr, sources.data(), ranks, ranks, count);
}

}  // namespace

Coroutine exchange(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes) {
  const Peers peers(channel);
  if (outputs[peers.rank] != inputs[peers.rank] && output_bytes[peers.rank] > 0) {
    std::memcpy(outputs[peers.rank], inputs[peers.rank], output_bytes[peers.rank]);
  }
  const bool at_once = sum(input_bytes) <= kOneStepBytes && sum(output_bytes) <= kOneStepBytes;
  Transfers steps[] = {{channel, tag}, {channel, tag}};  // a step begins before the one before is complete
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    steps[step % 2].receive(from, outputs[from], output_bytes[from]);
    steps[step % 2].send(to, inputs[to], input_bytes[to]);
    if (!at_once) co_await steps[(step + 1) % 2];
  }
  co_await steps[0];
  co_await steps[1];
}

Coroutine all_gather(Channel& channel, int tag, const std::byte* input, std::vector<std::byte*> outputs,
                     std::vector<size_t> bytes) {
  const Peers peers(channel);
  auto* const own = outputs[peers.rank];
  if (own != input && bytes[peers.rank] > 0) std::memcpy(own, input, bytes[peers.rank]);
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int sent = peers.from(step - 1), received = peers.from(step);
    transfers.receive(peers.from(1), outputs[received], bytes[received]);
    transfers.send(peers.to(1), outputs[sent], bytes[sent]);
    co_await transfers;
  }
}

Coroutine broadcast(Channel& channel, int tag, std::byte* data, size_t bytes, int root, bool tree) {
  const int ranks = channel.ranks();
  const int place = (channel.rank() - root + ranks) % ranks;  // of this rank, counted from the root
  const auto rank_at = [&](int other) { return (other + root) % ranks; };
  Transfers transfers(channel, tag);
  int reach = 1;  // in a tree, the distance between a rank and the next one that it sends to
  if (place > 0) {
    const int step = tree ? static_cast<int>(std::bit_floor(static_cast<unsigned>(place))) : 1;
    transfers.receive(rank_at(place - step), data, bytes);
    co_await transfers;
    reach = 2 * step;
  }
  if (!tree) {
    if (place + 1 < ranks) transfers.send(rank_at(place + 1), data, bytes);
  } else {
    for (; place + reach < ranks; reach *= 2) transfers.send(rank_at(place + reach), data, bytes);
  }
  co_await transfers;
}

Coroutine reduce_scatter(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination) {
  const Peers peers(channel);
  const size_t own = counts[peers.rank] * combination.width;
  const auto received = allocate(own * static_cast<size_t>(peers.ranks - 1));
  const bool at_once = sum(counts) * combination.width <= kOneStepBytes;
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, place_of(from, peers.rank, received.get(), own), own);
    transfers.send(to, inputs[to], counts[to] * combination.width);
    if (!at_once) co_await transfers;
  }
  co_await transfers;
  combine(combination, in_order(peers.rank, peers.ranks, inputs[peers.rank], received.get(), own), output,
          counts[peers.rank]);
}

Coroutine reduce(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                 Combination combination, int root) {
  const Peers peers(channel);
  const Division shares{count, peers.ranks};
  const size_t width = combination.width;
  const size_t own = shares.of(peers.rank) * width;
  const auto received = allocate(own * static_cast<size_t>(peers.ranks - 1));
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, place_of(from, peers.rank, received.get(), own), own);
    transfers.send(to, input + shares.begin(to) * width, shares.of(to) * width);
    co_await transfers;
  }
  const auto* const own_input = input + shares.begin(peers.rank) * width;
  const bool receives = root == kAllRanks || root == peers.rank;
  const auto scratch = receives ? nullptr : allocate(own);
  auto* const own_output = receives ? output + shares.begin(peers.rank) * width : scratch.get();
  combine(combination, in_order(peers.rank, peers.ranks, own_input, received.get(), own), own_output,
          shares.of(peers.rank));
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    if (receives) transfers.receive(from, output + shares.begin(from) * width, shares.of(from) * width);
    if (root == kAllRanks || root == to) transfers.send(to, own_output, own);
    if (root == kAllRanks) co_await transfers;
  }
  co_await transfers;
}

Coroutine reduce_at_once(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                         Combination combination, int root) {
  const Peers peers(channel);
  const bool receives = root == kAllRanks || root == peers.rank;
  const size_t bytes = count * combination.width;
  const auto received = allocate(receives ? bytes * static_cast<size_t>(peers.ranks - 1) : 0);
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    if (receives) transfers.receive(from, place_of(from, peers.rank, received.get(), bytes), bytes);
    if (root == kAllRanks || root == to) transfers.send(to, input, bytes);
  }
  co_await transfers;
  if (receives) combine(combination, in_order(peers.rank, peers.ranks, input, received.get(), bytes), output, count);
}

}  // namespace cpudist::mpi
