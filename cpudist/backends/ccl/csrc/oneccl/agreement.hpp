// What ranks compare before a call in which each of them has the counts from its own caller.
#pragma once

#include <string>
#include <vector>

#include "../transport.hpp"

namespace cpudist::oneccl {

// Of each rank: the number of its own elements, and a hash of all counts. Whether all ranks have the same counts.
inline bool counts_agree(const std::vector<size_t>& gathered) {
  std::vector<size_t> shares;
  for (size_t i = 0; i < gathered.size(); i += 2) shares.push_back(gathered[i]);
  const uint64_t expected = hash_of(shares);
  for (size_t i = 1; i < gathered.size(); i += 2) {
    if (gathered[i] != expected) return false;
  }
  return true;
}

// Throws the error of ranks that have different counts: of each rank, the count of every rank.
[[noreturn]] inline void fail_by_counts(const std::string& name, const std::vector<size_t>& counts, size_t ranks) {
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t of = 0; of < ranks; ++of) {
      const size_t expected = counts[r * ranks + of], given = counts[of * ranks + of];
      if (expected == given) continue;
      throw TransportError(name + ": the share of rank " + std::to_string(of) + " has " + std::to_string(given) +
                           " elements, but rank " + std::to_string(r) + " expects " + std::to_string(expected) +
                           "; pass the same on both");
    }
  }
  throw TransportError(name + ": ranks have different counts; pass the same on both sides");
}

// Throws an error if a rank sends another number of elements, of `width` bytes, than its peer expects. `counts`: of each
// rank, what it sends to every rank, then what it expects of every rank. Returns the most that a rank sends to another.
inline size_t longest_of_alltoall(const std::vector<size_t>& counts, size_t ranks, size_t width) {
  size_t longest = 0;
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      const size_t sent = counts[2 * ranks * from + to], expected = counts[2 * ranks * to + ranks + from];
      if (sent != expected) throw alltoall_mismatch(from, sent * width, to, expected * width);
      longest = std::max(longest, sent);
    }
  }
  return longest;
}

}  // namespace cpudist::oneccl
