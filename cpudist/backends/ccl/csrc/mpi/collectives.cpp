#include "collectives.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if !defined(__clang__)  // GCC 12 warns about lambdas in a coroutine's frame as if other files saw the frame's class
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace cpudist::mpi {

namespace {

// The buffer of each rank: `own`, and those of the other ranks one after the other in `received`.
auto buffers(const Peers& peers, const std::byte* own, const Scratch& received, size_t bytes) {
  return [=, &received](int r) { return r == peers.rank ? own : place_of(r, peers.rank, received.get(), bytes); };
}

}  // namespace

Coroutine exchange(Channel& channel, int tag, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes) {
  const Peers peers(channel);
  if (outputs[peers.rank] != inputs[peers.rank] && output_bytes[peers.rank] > 0) {
    std::memcpy(outputs[peers.rank], inputs[peers.rank], output_bytes[peers.rank]);
  }
  const size_t longest = std::max(*std::max_element(input_bytes.begin(), input_bytes.end()),
                                  *std::max_element(output_bytes.begin(), output_bytes.end()));
  const int at_once = steps_at_once(longest);
  Transfers turns[] = {{channel, tag}, {channel, tag}};  // a step begins before the previous step is complete
  int turn = 0;
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    turns[turn].receive(from, outputs[from], output_bytes[from]);
    turns[turn].send(to, inputs[to], input_bytes[to]);
    if (step % at_once != 0) continue;
    turn = 1 - turn;
    co_await turns[turn];
  }
  co_await turns[0];
  co_await turns[1];
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
  const int at_once = steps_at_once(*std::max_element(counts.begin(), counts.end()) * combination.width);
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, place_of(from, peers.rank, received.get(), own), own);
    transfers.send(to, inputs[to], counts[to] * combination.width);
    if (step % at_once == 0) co_await transfers;
  }
  co_await transfers;
  combination(output, nullptr, counts[peers.rank], peers.ranks, buffers(peers, inputs[peers.rank], received, own));
}

Coroutine reduce(Channel& channel, int tag, const std::byte* input, std::byte* output, size_t count,
                 Combination combination, int root) {
  const Peers peers(channel);
  const size_t width = combination.width;
  const auto share = [=](int r) { return share_of(count, static_cast<size_t>(r), static_cast<size_t>(peers.ranks)); };
  const auto own = share(peers.rank);
  const size_t bytes = own.count * width;
  const auto received = allocate(bytes * static_cast<size_t>(peers.ranks - 1));
  const int at_once = steps_at_once(bytes);
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, place_of(from, peers.rank, received.get(), bytes), bytes);
    transfers.send(to, input + share(to).first * width, share(to).count * width);
    if (step % at_once == 0) co_await transfers;
  }
  co_await transfers;
  const bool receives = root == kAllRanks || root == peers.rank;
  const auto scratch = receives ? nullptr : allocate(bytes);
  auto* const result = receives ? output + own.first * width : scratch.get();
  combination(result, nullptr, own.count, peers.ranks, buffers(peers, input + own.first * width, received, bytes));
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    if (receives) transfers.receive(from, output + share(from).first * width, share(from).count * width);
    if (root == kAllRanks || root == to) transfers.send(to, result, bytes);
    if (root == kAllRanks && step % at_once == 0) co_await transfers;
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
  if (receives) combination(output, nullptr, count, peers.ranks, buffers(peers, input, received, bytes));
}

Coroutine compressed_allreduce(Channel& channel, int tag, CompressedSum sum) {
  const Peers peers(channel);
  const size_t bytes = sum.bytes_of(peers.rank);
  const auto outgoing = allocate(sum.bytes());
  const auto incoming = allocate(std::max(sum.bytes(), bytes * static_cast<size_t>(peers.ranks - 1)));
  const int at_once = steps_at_once(bytes);
  sum.encode_shares(outgoing.get());
  Transfers transfers(channel, tag);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, place_of(from, peers.rank, incoming.get(), bytes), bytes);
    transfers.send(to, outgoing.get() + sum.begin(to) - (to > peers.rank ? bytes : 0), sum.bytes_of(to));
    if (step % at_once == 0) co_await transfers;
  }
  co_await transfers;
  sum.add_shares(incoming.get());
  auto* const own = incoming.get() + sum.begin(peers.rank);
  sum.encode_sum(own);
  for (int step = 1; step < peers.ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    transfers.receive(from, incoming.get() + sum.begin(from), sum.bytes_of(from));
    transfers.send(to, own, bytes);
    if (step % at_once == 0) co_await transfers;
  }
  co_await transfers;
  sum.decode_sums(incoming.get());
}

}  // namespace cpudist::mpi
