#include "collectives.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "../parallel.hpp"

namespace cpudist::shared_memory {

using parallel::Slice;

namespace {

// Where a rank would read no more than this from the others, every rank reads and reduces everything, in one step. Above,
// each rank reduces its share for all, in two steps.
constexpr size_t kOneStepReads = size_t{48} << 10;
constexpr int kOneStepRanks = 2;

// How much of [offset, offset + most) lies within a message of `whole`.
size_t part(size_t whole, size_t offset, size_t most) { return whole > offset ? std::min(whole - offset, most) : 0; }

void check_counts(int from, uint64_t sent, int to, uint64_t expected) {
  if (sent != expected) throw TransportError(alltoall_mismatch(from, sent, to, expected));
}

size_t pieces_of(size_t whole, size_t most) { return (whole + most - 1) / most; }

size_t sum(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

}  // namespace

// A slot that holds a part for each other rank.
//
//   | for rank 0 | for rank 1 | ... |   the slot's owner has no part
struct Shares {
  Shares(const Board& board) : ranks(board.ranks()) {
    const auto others = static_cast<size_t>(std::max(ranks - 1, 1));
    bytes = board.slot_bytes() / others / kLineBytes * kLineBytes;
  }

  std::byte* of(std::byte* slot, int owner, int receiver) const {
    return slot + static_cast<size_t>(receiver - (receiver > owner ? 1 : 0)) * bytes;
  }

  int ranks;
  size_t bytes;
};

// How a piece of an allreduce is divided: rank r reduces its elements [begin(r), begin(r) + count(r)).
struct Division {
  Division(size_t elements, size_t width, int ranks) : elements(elements) {
    const size_t line = kLineBytes / width;
    const size_t even = pieces_of(elements, static_cast<size_t>(ranks));
    share = pieces_of(even, line) * line;
  }
  size_t begin(int rank) const { return std::min(static_cast<size_t>(rank) * share, elements); }
  size_t count(int rank) const { return part(elements, begin(rank), share); }

  size_t elements;
  size_t share;
};

namespace {

// Reduces what lies at place(r) for each rank r, in the order of ranks. `copy` may be null.
template <typename Place>
void combine(const Board& board, const Combination& combination, std::byte* output, std::byte* copy, size_t count,
             Slice slice, Place place) {
  const void* few[16];
  std::vector<const void*> many;
  const auto ranks = static_cast<size_t>(board.ranks());
  const void** sources = few;
  if (ranks > std::size(few)) {
    many.resize(ranks);
    sources = many.data();
  }
  const auto own = slice.of(count, combination.width);
  const size_t begin = own.begin * combination.width;
  for (int rank = 0; rank < board.ranks(); ++rank) sources[rank] = place(rank) + begin;
  if (own.count == 0) return;
  combination.kernel(output + begin, copy == nullptr ? nullptr : copy + begin, sources, board.ranks(), board.ranks(),
                     own.count);
}

// One step per piece: every rank writes its own elements and reduces those of all. A rank writes the next piece before
// it waits for the others, so that it does not wait for a rank that is only a little behind.
Coroutine allreduce_in_one_step(Board& board, const std::byte* input, std::byte* output, size_t count,
                                Combination combination, int receiver) {
  const size_t width = combination.width;
  const size_t pieces = std::max<size_t>(pieces_of(count * width, board.slot_bytes()), 1);
  const size_t length = pieces_of(count, pieces);
  const bool receives = receiver == kAllRanks || receiver == board.rank();
  uint64_t written = 0;
  for (size_t piece = 0; piece <= pieces; ++piece) {
    const uint64_t step = written;
    if (piece < pieces) {
      co_await board.entered();
      const size_t bytes = part(count, piece * length, length) * width;
      std::byte* const to = board.place(board.rank(), board.step(), bytes);
      parallel::divide(count * width,
                       [&](Slice slice) { parallel::copy(to, input + piece * length * width, bytes, slice); });
      written = board.publish();
    }
    if (piece >= 1 && receives) {
      co_await board.published_by_all(step);
      const size_t begin = (piece - 1) * length;
      const size_t elements = part(count, begin, length);
      parallel::divide(count * width, [&](Slice slice) {
        combine(board, combination, output + begin * width, nullptr, elements, slice, [&](int rank) {
          return rank == board.rank() ? input + begin * width : board.place(rank, step, elements * width);
        });
      });
    }
  }
}

// Two steps per piece: every rank writes the shares that the others reduce, and reduces its own share; then all ranks
// collect the shares. Three pieces are in flight, so that no rank waits for one that is only a little behind:
//
//   write piece k | reduce piece k - 1 | collect piece k - 2
//
// A rank publishes two more steps between publishing its share of a piece and reading the others', hence kLag = 3.
Coroutine allreduce_in_two_steps(Board& board, const std::byte* input, std::byte* output, size_t count,
                                 Combination combination, int receiver) {
  const size_t width = combination.width;
  const int self = board.rank();
  const int ranks = board.ranks();
  const Shares shares(board);
  const size_t pieces = pieces_of(count * width, shares.bytes * static_cast<size_t>(ranks));
  const size_t length = pieces_of(count, pieces);
  const auto division = [=](size_t piece) { return Division(part(count, piece * length, length), width, ranks); };
  const bool receives = receiver == kAllRanks || receiver == self;
  uint64_t written[2];  // the steps in which piece k was written and summed, at k % 2
  uint64_t summed[2];

  for (size_t piece = 0; piece < pieces + 2; ++piece) {
    if (piece < pieces) {
      co_await board.entered();
      const auto parts = division(piece);
      std::byte* const slot = board.slot(self, board.step());
      parallel::divide(count * width, [&](Slice slice) {
        for (int rank = 0; rank < ranks; ++rank) {
          if (rank == self) continue;
          parallel::copy(shares.of(slot, self, rank), input + (piece * length + parts.begin(rank)) * width,
                         parts.count(rank) * width, slice);
        }
      });
      written[piece % 2] = board.publish();
    }
    if (piece >= 1 && piece <= pieces) {
      const uint64_t step = written[(piece - 1) % 2];
      co_await board.published_by_all(step);
      co_await board.entered();
      const auto parts = division(piece - 1);
      const size_t begin = ((piece - 1) * length + parts.begin(self)) * width;
      std::byte* const slot = board.slot(self, board.step());
      std::byte* const to = receives ? output + begin : slot;
      parallel::divide(count * width, [&](Slice slice) {
        combine(board, combination, to, receives ? slot : nullptr, parts.count(self), slice,
                [&](int rank) { return rank == self ? input + begin : shares.of(board.slot(rank, step), rank, self); });
      });
      summed[(piece - 1) % 2] = board.publish();
    }
    if (piece >= 2 && receives) {
      const uint64_t step = summed[piece % 2];
      const auto parts = division(piece - 2);
      co_await board.published_by_all(step);
      parallel::divide(count * width, [&](Slice slice) {
        for (int rank = 0; rank < ranks; ++rank) {
          if (rank == self) continue;
          parallel::copy(output + ((piece - 2) * length + parts.begin(rank)) * width, board.slot(rank, step),
                         parts.count(rank) * width, slice);
        }
      });
    }
  }
}

}  // namespace

Coroutine barrier(Board& board) {
  co_await board.entered();
  const uint64_t step = board.publish();
  co_await board.published_by_all(step);
}

Coroutine broadcast(Board& board, std::byte* data, size_t bytes, int root) {
  const size_t most = board.slot_bytes();
  for (size_t offset = 0; offset < bytes; offset += most) {
    const size_t length = part(bytes, offset, most);
    co_await board.entered();
    std::byte* const place = board.place(root, board.step(), length);
    if (board.rank() == root) {
      parallel::divide(bytes, [&](Slice slice) { parallel::copy(place, data + offset, length, slice); });
    }
    const uint64_t step = board.publish();
    if (board.rank() == root) continue;
    co_await board.published_by(root, step);
    parallel::divide(bytes, [&](Slice slice) { parallel::copy(data + offset, place, length, slice); });
  }
}

Coroutine allreduce(Board& board, const std::byte* input, std::byte* output, size_t count, Combination combination,
                    int receiver) {
  const size_t reads = count * combination.width * static_cast<size_t>(board.ranks() - 1);
  const bool in_one_step = reads <= kOneStepReads || board.ranks() <= kOneStepRanks;
  return (in_one_step ? allreduce_in_one_step : allreduce_in_two_steps)(board, input, output, count, combination,
                                                                        receiver);
}

Coroutine allgather(Board& board, const std::byte* input, std::vector<std::byte*> outputs, std::vector<size_t> bytes) {
  const int self = board.rank();
  const size_t most = board.slot_bytes();
  const size_t longest = *std::max_element(bytes.begin(), bytes.end());
  const size_t whole = sum(bytes);
  for (size_t offset = 0; offset < longest; offset += most) {
    co_await board.entered();
    const size_t own = part(bytes[self], offset, most);
    std::byte* const place = board.place(self, board.step(), own);
    parallel::divide(whole, [&](Slice slice) { parallel::copy(place, input + offset, own, slice); });
    const uint64_t step = board.publish();
    parallel::divide(whole, [&](Slice slice) { parallel::copy(outputs[self] + offset, input + offset, own, slice); });
    for (int rank = 0; rank < board.ranks(); ++rank) {
      if (rank == self) continue;
      co_await board.published_by(rank, step);
      const size_t length = part(bytes[rank], offset, most);
      const std::byte* const from = board.place(rank, step, length);
      parallel::divide(whole, [&](Slice slice) { parallel::copy(outputs[rank] + offset, from, length, slice); });
    }
  }
}

Coroutine reduce_scatter(Board& board, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination) {
  const int self = board.rank();
  const Shares shares(board);
  const size_t width = combination.width;
  const size_t longest = *std::max_element(counts.begin(), counts.end());
  const size_t most = shares.bytes / width;
  const size_t whole = sum(counts) * width;
  for (size_t offset = 0; offset < longest; offset += most) {
    co_await board.entered();
    std::byte* const slot = board.slot(self, board.step());
    parallel::divide(whole, [&](Slice slice) {
      for (int rank = 0; rank < board.ranks(); ++rank) {
        if (rank == self) continue;
        parallel::copy(shares.of(slot, self, rank), inputs[rank] + offset * width,
                       part(counts[rank], offset, most) * width, slice);
      }
    });
    const uint64_t step = board.publish();
    co_await board.published_by_all(step);
    const size_t elements = part(counts[self], offset, most);
    parallel::divide(whole, [&](Slice slice) {
      combine(board, combination, output + offset * width, nullptr, elements, slice, [&](int rank) {
        return rank == self ? inputs[self] + offset * width : shares.of(board.slot(rank, step), rank, self);
      });
    });
  }
}

// What a rank writes to each other rank in the first step of an alltoall, before the data.
struct AlltoallCounts {
  uint64_t sent;
  uint64_t expected;
};

// What a rank publishes to all others in that step.
struct AlltoallSummary {
  uint64_t longest;  // of its messages to other ranks
  uint64_t balance;  // hashes of what it sends, less those of what it expects: of all ranks together 0 if they agree
};

static uint64_t hash_of(int from, int to, uint64_t bytes) {
  uint64_t hash = bytes * 0x9e3779b97f4a7c15 + (static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to));
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
  return hash ^ hash >> 31;
}

// Never holds: for a rank that waits until another one reports a failure to all.
class FailureOfAnother final : public Condition {
 public:
  bool holds() override { return false; }
};

// A rank knows only its own counts, so the ranks tell each other in the first step. Two ranks that disagree report a
// failure to all, and no other rank completes the call. All ranks go on until the longest message of all has been sent.
Coroutine alltoall(Board& board, std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                   std::vector<std::byte*> outputs, std::vector<size_t> output_bytes) {
  const int self = board.rank();
  const Shares shares(board);
  AlltoallSummary summary{0, 0};
  for (int rank = 0; rank < board.ranks(); ++rank) {
    if (rank != self) summary.longest = std::max<uint64_t>(summary.longest, input_bytes[rank]);
    summary.balance += hash_of(self, rank, input_bytes[rank]) - hash_of(rank, self, output_bytes[rank]);
  }
  const AlltoallSummary own = summary;
  const size_t whole = std::max(sum(input_bytes), sum(output_bytes));
  size_t offset = 0;
  for (bool first = true; first || offset < summary.longest; first = false) {
    const size_t head = first ? sizeof(AlltoallCounts) : 0;
    const size_t most = shares.bytes - head;
    co_await board.entered();
    std::byte* const slot = board.slot(self, board.step());
    for (int rank = 0; first && rank < board.ranks(); ++rank) {
      const AlltoallCounts counts{input_bytes[rank], output_bytes[rank]};
      if (rank != self) std::memcpy(shares.of(slot, self, rank), &counts, sizeof counts);
    }
    if (first) std::memcpy(board.place(self, board.step(), sizeof own), &own, sizeof own);
    parallel::divide(whole, [&](Slice slice) {
      for (int rank = 0; rank < board.ranks(); ++rank) {
        if (rank == self) continue;
        parallel::copy(shares.of(slot, self, rank) + head, inputs[rank] + offset, part(input_bytes[rank], offset, most),
                       slice);
      }
    });
    const uint64_t step = board.publish();
    if (first) {
      check_counts(self, input_bytes[self], self, output_bytes[self]);
      parallel::divide(whole,
                       [&](Slice slice) { parallel::copy(outputs[self], inputs[self], input_bytes[self], slice); });
    }
    for (int rank = 0; rank < board.ranks(); ++rank) {
      if (rank == self) continue;
      co_await board.published_by(rank, step);
      if (!first) continue;
      AlltoallCounts theirs;
      std::memcpy(&theirs, shares.of(board.slot(rank, step), rank, self), sizeof theirs);
      check_counts(rank, theirs.sent, self, output_bytes[rank]);
      check_counts(self, input_bytes[rank], rank, theirs.expected);
      AlltoallSummary of_rank;
      std::memcpy(&of_rank, board.place(rank, step, sizeof of_rank), sizeof of_rank);
      summary.longest = std::max(summary.longest, of_rank.longest);
      summary.balance += of_rank.balance;
    }
    parallel::divide(whole, [&](Slice slice) {
      for (int rank = 0; rank < board.ranks(); ++rank) {
        if (rank == self) continue;
        parallel::copy(outputs[rank] + offset, shares.of(board.slot(rank, step), rank, self) + head,
                       part(output_bytes[rank], offset, most), slice);
      }
    });
    if (first && summary.balance != 0) co_await FailureOfAnother();
    offset += most;
  }
}

}  // namespace cpudist::shared_memory
