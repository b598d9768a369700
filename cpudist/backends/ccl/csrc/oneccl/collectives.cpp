#include "collectives.hpp"

#include <algorithm>

#include "agreement.hpp"

#if !defined(__clang__)  // GCC 12 warns about lambdas in a coroutine's frame as if other files saw the frame's class
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace cpudist::oneccl {

namespace {

// Gathers the numbers of all ranks; each rank has equally many.
ccl::event gather(Communicator& communicator, const std::vector<size_t>& own, std::vector<size_t>& gathered) {
  const ccl::vector_class<size_t> lengths(static_cast<size_t>(communicator.size()), own.size());
  gathered.resize(own.size() * lengths.size());
  return ccl::allgatherv(own.data(), own.size(), gathered.data(), lengths, ccl::datatype::uint64, communicator.raw());
}

}  // namespace

Coroutine agree(Communicator& communicator, std::string name, std::vector<size_t> counts) {
  communicator.order.hold();
  const std::vector<size_t> own{counts[static_cast<size_t>(communicator.rank())], hash_of(counts)};
  std::vector<size_t> gathered;
  co_await communicator.started(gather(communicator, own, gathered));
  if (!counts_agree(gathered)) {
    co_await communicator.started(gather(communicator, counts, gathered));
    fail_by_counts(name, gathered, counts.size());
  }
  communicator.order.release();
}

Coroutine alltoall(Communicator& communicator, std::vector<const void*> inputs, std::vector<size_t> input_counts,
                   std::vector<void*> outputs, std::vector<size_t> output_counts, size_t width, ccl::datatype type) {
  communicator.order.hold();
  const size_t ranks = inputs.size();
  std::vector<size_t> own(input_counts), counts;
  own.insert(own.end(), output_counts.begin(), output_counts.end());
  co_await communicator.started(gather(communicator, own, counts));
  const size_t most = std::max<size_t>(communicator.round_bytes() / width / ranks, 1);  // elements to one peer
  const size_t rounds = pieces_of(longest_of_alltoall(counts, ranks, width), most);
  const auto source = rounds == 1 ? flat(inputs, input_counts, width) : std::nullopt;
  const auto target = rounds == 1 ? flat(outputs, output_counts, width) : std::nullopt;
  for (size_t round = 0; round < rounds; ++round) {
    const auto sent = parts(input_counts, round * most, most), received = parts(output_counts, round * most, most);
    const auto packed = source ? nullptr : allocate(sum(sent) * width);
    const auto arrived = target ? nullptr : allocate(sum(received) * width);
    auto* next = packed.get();
    for (size_t r = 0; next != nullptr && r < ranks; ++r) {
      if (sent[r] == 0) continue;
      std::memcpy(next, bytes(inputs[r]) + round * most * width, sent[r] * width);
      next += sent[r] * width;
    }
    auto call = ccl::alltoallv(source ? *source : packed.get(), sent, target ? *target : arrived.get(), received, type,
                               communicator.raw());
    if (round + 1 == rounds) communicator.order.release();
    co_await communicator.started(std::move(call));
    if (!target) unpack(arrived.get(), outputs, round * most, received, width);
  }
}

Coroutine compressed_allreduce(Communicator& shares, Communicator& sums, Turns& turns, uint64_t turn,
                               CompressedSum sum) {
  const int rank = shares.rank(), ranks = shares.size();
  ccl::vector_class<size_t> bytes;
  for (int r = 0; r < ranks; ++r) bytes.push_back(sum.bytes_of(r));
  const size_t own = bytes[rank];
  auto sent = bytes;
  ccl::vector_class<size_t> received(bytes.size(), own);
  sent[rank] = received[rank] = 0;
  const auto outgoing = allocate(sum.bytes());
  const auto incoming = allocate(std::max(sum.bytes(), own * static_cast<size_t>(ranks - 1)));
  sum.encode_shares(outgoing.get());
  co_await shares.started(
      ccl::alltoallv(outgoing.get(), sent, incoming.get(), received, ccl::datatype::int8, shares.raw()));
  sum.add_shares(incoming.get());
  sum.encode_sum(outgoing.get());
  co_await Turn(turns, turn);
  // With a buffer per rank instead of one, oneCCL (2022.1) does not return before all ranks have made the call.
  auto call = ccl::allgatherv(outgoing.get(), own, incoming.get(), bytes, ccl::datatype::int8, sums.raw());
  ++turns.done;
  co_await sums.started(std::move(call));
  sum.decode_sums(incoming.get());
}

}  // namespace cpudist::oneccl
