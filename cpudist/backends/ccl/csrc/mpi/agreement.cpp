#include <string>

#include "collectives.hpp"

namespace cpudist::mpi {

namespace {

using Numbers = std::vector<uint64_t>;

// Sends `own` to every rank; all[r] receives as many numbers of rank r.
void gather(Transfers& transfers, const Channel& channel, const Numbers& own, std::vector<Numbers>& all) {
  all.assign(static_cast<size_t>(channel.ranks()), Numbers(own.size()));
  all[static_cast<size_t>(channel.rank())] = own;
  for (int r = 0; r < channel.ranks(); ++r) {
    if (r == channel.rank()) continue;
    transfers.receive(r, all[static_cast<size_t>(r)].data(), own.size() * sizeof(uint64_t));
    transfers.send(r, own.data(), own.size() * sizeof(uint64_t));
  }
}

uint64_t hash_of_message(size_t from, size_t to, uint64_t bytes) { return hash_of({from, to, bytes}); }

}  // namespace

// The ranks gather the number of their own elements and a hash of all counts; the counts only for the message.
Coroutine agree(Channel& channel, int tag, const char* name, std::vector<size_t> counts) {
  Transfers transfers(channel, tag);
  std::vector<Numbers> all;
  const Numbers own{counts[static_cast<size_t>(channel.rank())], hash_of(counts)};
  gather(transfers, channel, own, all);
  co_await transfers;
  std::vector<size_t> shares;
  for (const auto& numbers : all) shares.push_back(numbers[0]);
  bool agreed = true;
  for (const auto& numbers : all) agreed = agreed && numbers[1] == hash_of(shares);
  if (agreed) co_return;
  const Numbers own_counts(counts.begin(), counts.end());
  gather(transfers, channel, own_counts, all);
  co_await transfers;
  for (size_t r = 0; r < all.size(); ++r) {
    for (size_t of = 0; of < all.size(); ++of) {
      if (all[r][of] != all[of][of]) throw count_mismatch(name, of, all[of][of], r, all[r][of]);
    }
  }
  throw TransportError(std::string(name) + ": ranks have different counts; pass the same on both sides");
}

// The ranks gather a hash of what each sends, less one of what it expects: their sum is 0 if all agree.
Coroutine agree_on_alltoall(Channel& channel, int tag, std::vector<size_t> input_bytes,
                            std::vector<size_t> output_bytes) {
  const auto self = static_cast<size_t>(channel.rank());
  Transfers transfers(channel, tag);
  std::vector<Numbers> all;
  Numbers balance{0};
  for (size_t r = 0; r < input_bytes.size(); ++r) {
    balance[0] += hash_of_message(self, r, input_bytes[r]) - hash_of_message(r, self, output_bytes[r]);
  }
  gather(transfers, channel, balance, all);
  co_await transfers;
  uint64_t total = 0;
  for (const auto& numbers : all) total += numbers[0];
  if (total == 0) co_return;
  Numbers own(input_bytes.begin(), input_bytes.end());
  own.insert(own.end(), output_bytes.begin(), output_bytes.end());
  gather(transfers, channel, own, all);
  co_await transfers;
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      const uint64_t sent = all[from][to], expected = all[to][all.size() + from];
      if (sent != expected) throw alltoall_mismatch(from, sent, to, expected);
    }
  }
  throw TransportError("all_to_all: ranks have different counts; make the split sizes of both sides agree");
}

}  // namespace cpudist::mpi
