// Collectives as oneCCL calls; each is a coroutine for one call, or for a piece of one.
#pragma once

#include <cstring>
#include <optional>

#include "../compressed_sum.hpp"
#include "communicator.hpp"

namespace cpudist::oneccl {

// The start of these parts if they are contiguous in memory.
template <typename Pointer>
std::optional<Pointer> flat(const std::vector<Pointer>& parts, const std::vector<size_t>& counts, size_t width) {
  Pointer begin = nullptr;
  const char* next = nullptr;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (!begin) {
      begin = parts[i];
    } else if (parts[i] != next) {
      return std::nullopt;
    }
    next = static_cast<const char*>(parts[i]) + counts[i] * width;
  }
  return begin;
}

// Copies consecutive parts at `from` to `outputs`, each `offset` elements after the output's start.
inline void unpack(const std::byte* from, const std::vector<void*>& outputs, size_t offset,
                   const std::vector<size_t>& counts, size_t width) {
  for (size_t r = 0; r < outputs.size(); ++r) {
    const size_t length = counts[r] * width;
    if (length > 0) std::memcpy(bytes(outputs[r]) + offset * width, from, length);
    from += length;
  }
}

// A oneCCL call, and the memory that only it needs.
struct Issued {
  Issued(ccl::event call, Scratch memory = {}) : event(std::move(call)), scratch(std::move(memory)) {}

  ccl::event event;
  Scratch scratch;
};

// issue(offset, length) starts the call for this part of the elements; finish(offset, length, scratch) post-processes
// the results.
template <typename Issue, typename Finish>
Coroutine piece(Communicator& communicator, size_t offset, size_t length, Issue issue, Finish finish) {
  Issued issued = issue(offset, length);
  co_await communicator.started(std::move(issued.event));
  finish(offset, length, issued.scratch.get());
}

// A message as calls of a size that MPI can count in 32 bits. Each call starts when the previous one is complete,
// because oneCCL does not keep the order of sends that are in flight together.
template <typename Issue>
Coroutine message(size_t bytes, size_t most, Issue issue) {
  for (size_t offset = 0; offset < bytes; offset += most) co_await InFlight(issue(offset, part(bytes, offset, most)));
}

// Compares the counts of a call before it starts, so that all ranks fail with the same error if their counts differ.
// Without this check MPI would write garbage, or wait for ever. Ranks gather their own count and a hash of all counts;
// if these show a difference, also all counts, for the message.
Coroutine agree(Communicator& communicator, std::string name, std::vector<size_t> counts);

// First gathers every rank's counts, so that all ranks fail with the same error if a rank sends another number of
// elements than its peer expects. Then exchanges the data in rounds, because MPI counts the bytes to a peer in 32 bits.
Coroutine alltoall(Communicator& communicator, std::vector<const void*> inputs, std::vector<size_t> input_counts,
                   std::vector<void*> outputs, std::vector<size_t> output_counts, size_t width, ccl::datatype type);

// Shares and sums have a communicator each, so that each communicator is called in the order of pieces and requests,
// although shares are complete at different times on different ranks. `turn` is the piece's place in that order.
Coroutine compressed_allreduce(Communicator& shares, Communicator& sums, Turns& turns, uint64_t turn,
                               CompressedSum sum);

}  // namespace cpudist::oneccl
