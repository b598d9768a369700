#include <algorithm>

#include "../kernels/reduce.hpp"
#include "../traffic.hpp"
#include "collectives.hpp"

namespace cpudist::mpi {

Coroutine compressed_allreduce(Channel& channel, int tag, float* data, float* residual, size_t count, Wire wire,
                               bool average) {
  const Peers peers(channel);
  const int ranks = peers.ranks;
  const auto kernels = kernels::wire_kernels(wire);
  const auto share = [=](int rank) {
    return kernels::wire_share(wire, count, static_cast<size_t>(rank), static_cast<size_t>(ranks));
  };
  const auto errors = [=](size_t first) { return residual == nullptr ? nullptr : residual + first; };
  const auto own = share(peers.rank);
  const int at_once = steps_at_once(own.bytes);
  const size_t whole = kernels::wire_bytes(wire, count) + static_cast<size_t>(ranks) * sizeof(float);
  const auto outgoing = allocate(whole);
  const auto received = allocate(std::max(own.bytes * static_cast<size_t>(ranks - 1), whole));
  if (residual != nullptr) kernels::add(residual, data, count);
  converted_from += count * sizeof(float);

  Transfers transfers(channel, tag);
  std::byte* next = outgoing.get();
  for (int step = 1; step < ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    const auto theirs = share(to);
    kernels.encode(data + theirs.first, next, errors(theirs.first), theirs.count);
    transfers.receive(from, place_of(from, peers.rank, received.get(), own.bytes), own.bytes);
    transfers.send(to, next, theirs.bytes);
    next += theirs.bytes;
    if (step % at_once == 0) co_await transfers;
  }
  co_await transfers;
  for (int peer = 0; peer + 1 < ranks; ++peer) {
    kernels.add(received.get() + static_cast<size_t>(peer) * own.bytes, data + own.first, own.count);
  }
  if (average) kernels::divide(data + own.first, data + own.first, own.count, DataType::kFloat32, ranks);
  kernels.encode(data + own.first, outgoing.get(), errors(own.first), own.count);
  // The error of an average is `ranks` times as large in the next sum.
  for (size_t i = 0; residual != nullptr && average && i < own.count; ++i)
    residual[own.first + i] *= static_cast<float>(ranks);
  converted_to += own.bytes;
  kernels.decode(outgoing.get(), data + own.first, own.count);
  for (int step = 1; step < ranks; ++step) {
    const int to = peers.to(step), from = peers.from(step);
    const auto theirs = share(from);
    transfers.receive(from, received.get(), theirs.bytes);
    transfers.send(to, outgoing.get(), own.bytes);
    co_await transfers;
    kernels.decode(received.get(), data + theirs.first, theirs.count);
    converted_to += theirs.bytes;
  }
}

}  // namespace cpudist::mpi
