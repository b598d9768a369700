#include "collectives.hpp"

#include <algorithm>

#include "shares.hpp"

#if !defined(__clang__)  // GCC 12 warns about lambdas in a coroutine's frame as if other files saw the frame's class
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

namespace cpudist::shared_memory {

namespace {

// An allreduce takes one step, in which every rank reduces everything, if a rank then reads no more bytes than this
// from the others, or if there are so few ranks. Otherwise each rank reduces a share for all ranks, in two steps.
constexpr size_t kOneStepReads = size_t{48} << 10;
constexpr int kOneStepRanks = 2;

// One step per piece: calls write(piece, step) in each step, and read(piece, step) once the ranks [first, end) have
// published the step. A rank writes the next piece before it waits for the others, so that it does not wait for a rank
// that is only a little behind.
template <typename Write, typename Read>
Coroutine in_pieces(Channel& channel, size_t pieces, int first, int end, Write write, Read read) {
  uint64_t written = 0;
  for (size_t piece = 0; piece <= pieces; ++piece) {
    const uint64_t before = written;
    if (piece < pieces) {
      co_await channel.entered();
      write(piece, channel.step());
      written = channel.publish();
    }
    if (piece == 0 || first == end) continue;
    co_await channel.published_by(first, end, before);
    read(piece - 1, before);
  }
}

Coroutine allreduce_in_one_step(Channel& channel, const std::byte* input, std::byte* output, size_t count,
                                Combination combination, int receiver) {
  const size_t width = combination.width;
  const size_t pieces = pieces_of(count * width, channel.slot_bytes());
  const size_t length = pieces_of(count, pieces);
  const bool receives = receiver == kAllRanks || receiver == channel.rank();
  return in_pieces(
      channel, pieces, 0, receives ? channel.ranks() : 0,
      [=, &channel](size_t piece, uint64_t step) {
        const size_t bytes = part(count, piece * length, length) * width;
        copy_bytes(channel.place(channel.rank(), step, bytes), input + piece * length * width, bytes);
      },
      [=, &channel](size_t piece, uint64_t step) {
        const size_t begin = piece * length * width;
        const size_t elements = part(count, piece * length, length);
        combination(output + begin, nullptr, elements, channel.ranks(), [&](int rank) {
          return rank == channel.rank() ? input + begin : channel.place(rank, step, elements * width);
        });
      });
}

// Two steps per piece: every rank writes the shares that the others reduce, and reduces its own share; then all ranks
// collect the shares. Three pieces are in flight, so that no rank waits for another that is only a little behind:
//
//   write piece k | reduce piece k - 1 | collect piece k - 2
//
// A rank publishes two more steps between publishing its share of a piece and reading the others', hence kLag = 3.
Coroutine allreduce_in_two_steps(Channel& channel, const std::byte* input, std::byte* output, size_t count,
                                 Combination combination, int receiver) {
  const size_t width = combination.width;
  const int self = channel.rank();
  const int ranks = channel.ranks();
  const Shares shares(channel);
  const size_t pieces = pieces_of(count * width, shares.bytes * static_cast<size_t>(ranks));
  const size_t length = pieces_of(count, pieces);
  // The elements of a piece that a rank reduces.
  const auto share = [=](size_t piece, int rank) {
    const Part own{static_cast<size_t>(rank), static_cast<size_t>(ranks)};
    const size_t elements = part(count, piece * length, length);
    return Share{piece * length + own.begin(elements, width), own.count(elements, width)};
  };
  const bool receives = receiver == kAllRanks || receiver == self;
  uint64_t written[2];  // written[k % 2], summed[k % 2]: the steps in which piece k was written and summed
  uint64_t summed[2];

  for (size_t piece = 0; piece < pieces + 2; ++piece) {
    if (piece < pieces) {
      co_await channel.entered();
      std::byte* const slot = channel.slot(self, channel.step());
      for (int rank = 0; rank < ranks; ++rank) {
        const auto theirs = share(piece, rank);
        if (rank != self) copy_bytes(shares.of(slot, self, rank), input + theirs.first * width, theirs.count * width);
      }
      written[piece % 2] = channel.publish();
    }
    if (piece >= 1 && piece <= pieces) {
      const uint64_t step = written[(piece - 1) % 2];
      co_await channel.published_by_all(step);
      co_await channel.entered();
      const auto own = share(piece - 1, self);
      const size_t begin = own.first * width;
      std::byte* const slot = channel.slot(self, channel.step());
      combination(receives ? output + begin : slot, receives ? slot : nullptr, own.count, ranks, [&](int rank) {
        return rank == self ? input + begin : shares.of(channel.slot(rank, step), rank, self);
      });
      summed[(piece - 1) % 2] = channel.publish();
    }
    if (piece >= 2 && receives) {
      const uint64_t step = summed[piece % 2];
      co_await channel.published_by_all(step);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto theirs = share(piece - 2, rank);
        if (rank != self) copy_bytes(output + theirs.first * width, channel.slot(rank, step), theirs.count * width);
      }
    }
  }
}

}  // namespace

Coroutine barrier(Channel& channel) {
  co_await channel.entered();
  const uint64_t step = channel.publish();
  co_await channel.published_by_all(step);
}

Coroutine broadcast(Channel& channel, std::byte* data, size_t bytes, int root) {
  const size_t most = channel.slot_bytes();
  const bool sends = channel.rank() == root;
  return in_pieces(
      channel, pieces_of(bytes, most), root, sends ? root : root + 1,
      [=, &channel](size_t piece, uint64_t step) {
        const size_t length = part(bytes, piece * most, most);
        if (sends) copy_bytes(channel.place(root, step, length), data + piece * most, length);
      },
      [=, &channel](size_t piece, uint64_t step) {
        const size_t length = part(bytes, piece * most, most);
        copy_bytes(data + piece * most, channel.place(root, step, length), length);
      });
}

Coroutine allreduce(Channel& channel, const std::byte* input, std::byte* output, size_t count, Combination combination,
                    int receiver) {
  const size_t reads = count * combination.width * static_cast<size_t>(channel.ranks() - 1);
  const bool in_one_step = reads <= kOneStepReads || channel.ranks() <= kOneStepRanks;
  return (in_one_step ? allreduce_in_one_step : allreduce_in_two_steps)(channel, input, output, count, combination,
                                                                        receiver);
}

Coroutine allgather(Channel& channel, const std::byte* input, std::vector<std::byte*> outputs,
                    std::vector<size_t> bytes) {
  const int self = channel.rank();
  const size_t most = channel.slot_bytes();
  const size_t pieces = pieces_of(*std::max_element(bytes.begin(), bytes.end()), most);
  const size_t own = bytes[self];
  return in_pieces(
      channel, pieces, 0, channel.ranks(),
      [=, &channel](size_t piece, uint64_t step) {
        const size_t length = part(own, piece * most, most);
        copy_bytes(channel.place(self, step, length), input + piece * most, length);
      },
      [=, &channel, outputs = std::move(outputs), bytes = std::move(bytes)](size_t piece, uint64_t step) {
        for (int rank = 0; rank < channel.ranks(); ++rank) {
          const size_t length = part(bytes[rank], piece * most, most);
          const std::byte* const from = rank == self ? input + piece * most : channel.place(rank, step, length);
          copy_bytes(outputs[rank] + piece * most, from, length);
        }
      });
}

Coroutine reduce_scatter(Channel& channel, std::vector<const std::byte*> inputs, std::byte* output,
                         std::vector<size_t> counts, Combination combination) {
  const int self = channel.rank();
  const Shares shares(channel);
  const size_t width = combination.width;
  const size_t most = shares.bytes / width;
  const size_t pieces = pieces_of(*std::max_element(counts.begin(), counts.end()), most);
  const size_t own = counts[self];
  const std::byte* const input = inputs[self];
  return in_pieces(
      channel, pieces, 0, channel.ranks(),
      [=, &channel, inputs = std::move(inputs), counts = std::move(counts)](size_t piece, uint64_t step) {
        std::byte* const slot = channel.slot(self, step);
        for (int rank = 0; rank < channel.ranks(); ++rank) {
          if (rank == self) continue;
          copy_bytes(shares.of(slot, self, rank), inputs[rank] + piece * most * width,
                     part(counts[rank], piece * most, most) * width);
        }
      },
      [=, &channel](size_t piece, uint64_t step) {
        const size_t begin = piece * most * width;
        combination(output + begin, nullptr, part(own, piece * most, most), channel.ranks(), [&](int rank) {
          return rank == self ? input + begin : shares.of(channel.slot(rank, step), rank, self);
        });
      });
}

}  // namespace cpudist::shared_memory
