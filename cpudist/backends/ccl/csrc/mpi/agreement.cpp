#include <algorithm>

#include "../agreement.hpp"
#include "collectives.hpp"

namespace cpudist::mpi {

namespace {

using Numbers = std::vector<size_t>;

// Sends `own` to every rank; `all` receives as many numbers of each.
void gather(Transfers& transfers, const Channel& channel, const Numbers& own, Numbers& all) {
  const size_t bytes = own.size() * sizeof(size_t);
  all.resize(own.size() * static_cast<size_t>(channel.ranks()));
  for (int r = 0; r < channel.ranks(); ++r) {
    auto* const theirs = &all[own.size() * static_cast<size_t>(r)];
    if (r == channel.rank()) {
      std::copy(own.begin(), own.end(), theirs);
    } else {
      transfers.receive(r, theirs, bytes);
      transfers.send(r, own.data(), bytes);
    }
  }
}

uint64_t hash_of_message(size_t from, size_t to, uint64_t bytes) { return hash_of({from, to, bytes}); }

}  // namespace

// The ranks gather the number of their own elements and a hash of all counts; the counts only for the message.
Coroutine agree(Channel& channel, int tag, const char* name, std::vector<size_t> counts) {
  Transfers transfers(channel, tag);
  Numbers all;
  const Numbers own{counts[static_cast<size_t>(channel.rank())], hash_of(counts)};
  gather(transfers, channel, own, all);
  co_await transfers;
  if (counts_agree(all)) co_return;
  gather(transfers, channel, counts, all);
  co_await transfers;
  fail_by_counts(name, all, counts.size());
}

// The ranks gather a hash of what each sends, less one of what it expects: their sum is 0 if all agree.
Coroutine agree_on_alltoall(Channel& channel, int tag, std::vector<size_t> input_bytes,
                            std::vector<size_t> output_bytes) {
  const auto self = static_cast<size_t>(channel.rank());
  Transfers transfers(channel, tag);
  Numbers all, balance{0};
  for (size_t r = 0; r < input_bytes.size(); ++r) {
    balance[0] += hash_of_message(self, r, input_bytes[r]) - hash_of_message(r, self, output_bytes[r]);
  }
  gather(transfers, channel, balance, all);
  co_await transfers;
  if (sum(all) == 0) co_return;
  Numbers own = input_bytes;
  own.insert(own.end(), output_bytes.begin(), output_bytes.end());
  gather(transfers, channel, own, all);
  co_await transfers;
  check_alltoall(all, input_bytes.size(), 1);
  throw TransportError("all_to_all: ranks have different counts; make the split sizes of both sides agree");
}

}  // namespace cpudist::mpi
