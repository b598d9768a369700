#include <algorithm>
#include <cstring>

#include "collectives.hpp"
#include "shares.hpp"

#if !defined(__clang__)  // GCC 12 warns about lambdas in a coroutine's frame as if other files saw the frame's class
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace cpudist::shared_memory {

namespace {

// A rank's header for each other rank in the first step of an alltoall, before the data.
struct AlltoallCounts {
  uint64_t sent;
  uint64_t expected;
};

// A rank's header for all other ranks in the same step.
struct AlltoallSummary {
  uint64_t longest;  // bytes of its longest message to another rank
  uint64_t balance;  // hashes of its counts to send minus those of its counts to receive; ranks that agree add up to 0
};

// Never holds: for a rank that waits until another one reports a failure to all.
class FailureOfAnother final : public Condition {
 public:
  bool holds() override { return false; }
};

void check_counts(int from, uint64_t sent, int to, uint64_t expected) {
  if (sent != expected) throw alltoall_mismatch(from, sent, to, expected);
}

}  // namespace

// A rank has only its own counts, so the ranks exchange them in the first step. Two ranks that disagree report a
// failure to all ranks, and no rank completes the call. All ranks go on until the longest message of all has been sent.
Coroutine alltoall(Channel& channel, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes) {
  const int self = channel.rank();
  const Shares shares(channel);
  AlltoallSummary summary{0, 0};
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    if (rank != self) summary.longest = std::max<uint64_t>(summary.longest, input_bytes[rank]);
    const auto from = static_cast<uint64_t>(self), to = static_cast<uint64_t>(rank);
    summary.balance += hash_of({from, to, input_bytes[rank]}) - hash_of({to, from, output_bytes[rank]});
  }
  const AlltoallSummary own = summary;
  // In the first step, each receiver's part of a slot begins with the counts, and the data follow.
  constexpr size_t head = sizeof(AlltoallCounts);
  const auto begin = [&](size_t piece) { return piece == 0 ? 0 : piece * shares.bytes - head; };
  const auto length = [&](size_t piece, size_t whole) {
    return part(whole, begin(piece), begin(piece + 1) - begin(piece));
  };
  const auto place = [&](size_t piece, uint64_t step, int from, int to) {
    return shares.of(channel.slot(from, step), from, to) + (piece == 0 ? head : 0);
  };
  const auto write = [&](size_t piece) {
    for (int rank = 0; rank < channel.ranks(); ++rank) {
      if (rank == self) continue;
      copy_bytes(place(piece, channel.step(), self, rank), inputs[rank] + begin(piece),
                 length(piece, input_bytes[rank]));
    }
  };

  co_await channel.entered();
  std::memcpy(channel.place(self, channel.step(), sizeof own), &own, sizeof own);
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    const AlltoallCounts counts{input_bytes[rank], output_bytes[rank]};
    if (rank != self) std::memcpy(shares.of(channel.slot(self, channel.step()), self, rank), &counts, head);
  }
  write(0);
  uint64_t written = channel.publish();
  check_counts(self, input_bytes[self], self, output_bytes[self]);
  copy_bytes(outputs[self], inputs[self], input_bytes[self]);
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    if (rank == self) continue;
    co_await channel.published_by(rank, rank + 1, written);
    AlltoallCounts theirs;
    std::memcpy(&theirs, shares.of(channel.slot(rank, written), rank, self), sizeof theirs);
    check_counts(rank, theirs.sent, self, output_bytes[rank]);
    check_counts(self, input_bytes[rank], rank, theirs.expected);
    AlltoallSummary of_rank;
    std::memcpy(&of_rank, channel.place(rank, written, sizeof of_rank), sizeof of_rank);
    summary.longest = std::max(summary.longest, of_rank.longest);
    summary.balance += of_rank.balance;
  }
  if (summary.balance != 0) co_await FailureOfAnother();
  const size_t pieces = pieces_of(summary.longest + head, shares.bytes);
  for (size_t piece = 0; piece < pieces; ++piece) {
    const uint64_t step = written;
    if (piece + 1 < pieces) {
      co_await channel.entered();
      write(piece + 1);
      written = channel.publish();
    }
    if (piece > 0) co_await channel.published_by_all(step);
    for (int rank = 0; rank < channel.ranks(); ++rank) {
      if (rank == self) continue;
      copy_bytes(outputs[rank] + begin(piece), place(piece, step, rank, self), length(piece, output_bytes[rank]));
    }
  }
}

}  // namespace cpudist::shared_memory
