// Comparison of counts before a call whose counts each rank has from its own caller.
#pragma once

#include <string>
#include <vector>

#include "../transport.hpp"

namespace cpudist::oneccl {

// Whether all ranks have the same counts. `gathered`: per rank, its own count and its hash of all counts.
inline bool counts_agree(const std::vector<size_t>& gathered) {
  std::vector<size_t> shares;
  for (size_t i = 0; i < gathered.size(); i += 2) shares.push_back(gathered[i]);
  const uint64_t expected = hash_of(shares);
  for (size_t i = 1; i < gathered.size(); i += 2) {
    if (gathered[i] != expected) return false;
  }
  return true;
}

// Throws the error of ranks with different counts. counts[r * ranks + i]: the share of rank i as rank r has it.
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

// Throws an error if a rank sends another number of elements, of `width` bytes, than its peer expects. `counts`: per
// rank, what it sends to each rank, then what it expects from each. Returns the most that a rank sends to another.
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
