#include <algorithm>

#include "../kernels/reduce.hpp"
#include "../traffic.hpp"
#include "collectives.hpp"

namespace cpudist::mpi {

namespace {

// A rank's share of the values: the first one, their number, and their bytes on the wire.
struct WireShare {
  WireShare(size_t count, int rank, int ranks, Wire wire) {
    const size_t blocks = (count + kernels::kWireBlock - 1) / kernels::kWireBlock;
    const auto begin = [&](int r) {
      return std::min(blocks * static_cast<size_t>(r) / static_cast<size_t>(ranks) * kernels::kWireBlock, count);
    };
    first = begin(rank);
    this->count = begin(rank + 1) - first;
    bytes = kernels::wire_bytes(wire, this->count);
  }

  size_t first;
  size_t count;
  size_t bytes;
};

void add(float* to, const float* from, size_t count) {
  const void* sources[] = {to, from};
  if (count > 0) kernels::reduction(DataType::kFloat32, Reduction::kSum)(to, nullptr, sources, 2, 1, count);
}

}  // namespace

Coroutine compressed_allreduce(Channel& channel, int tag, float* data, float* residual, size_t count, Wire wire,
                               bool average) {
  const int rank = channel.rank(), ranks = channel.ranks();
  const auto kernels = kernels::wire_kernels(wire);
  const auto share = [=](int r) { return WireShare(count, r, ranks, wire); };
  const auto errors = [=](const WireShare& part) { return residual == nullptr ? nullptr : residual + part.first; };
  const WireShare own = share(rank);
  const size_t whole = kernels::wire_bytes(wire, count) + static_cast<size_t>(ranks) * sizeof(float);
  const auto outgoing = allocate(whole);
  const auto received = allocate(std::max(own.bytes * static_cast<size_t>(ranks - 1), whole));
  if (residual != nullptr) add(data, residual, count);
  converted_from += count * sizeof(float);

  Transfers transfers(channel, tag);
  std::byte* next = outgoing.get();
  for (int step = 1; step < ranks; ++step) {
    const int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
    const WireShare theirs = share(to);
    kernels.encode(data + theirs.first, next, errors(theirs), theirs.count);
    transfers.receive(from, received.get() + static_cast<size_t>(from < rank ? from : from - 1) * own.bytes, own.bytes);
    transfers.send(to, next, theirs.bytes);
    next += theirs.bytes;
    co_await transfers;
  }
  for (int peer = 0; peer + 1 < ranks; ++peer) {
    kernels.add(received.get() + static_cast<size_t>(peer) * own.bytes, data + own.first, own.count);
  }
  if (average) kernels::divide(data + own.first, data + own.first, own.count, DataType::kFloat32, ranks);
  kernels.encode(data + own.first, outgoing.get(), errors(own), own.count);
  // The error of an average is `ranks` times as large in the next sum.
  for (size_t i = 0; residual != nullptr && average && i < own.count; ++i)
    residual[own.first + i] *= static_cast<float>(ranks);
  converted_to += own.bytes;
  kernels.decode(outgoing.get(), data + own.first, own.count);
  for (int step = 1; step < ranks; ++step) {
    const int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
    const WireShare theirs = share(from);
    transfers.receive(from, received.get(), theirs.bytes);
    transfers.send(to, outgoing.get(), own.bytes);
    co_await transfers;
    kernels.decode(received.get(), data + theirs.first, theirs.count);
    converted_to += theirs.bytes;
  }
}

}  // namespace cpudist::mpi
