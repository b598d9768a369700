// A collective call in 64 bits. Shared memory publishes it with every step, and MPI hashes it into tags, so that ranks
// that make different calls get an error instead of taking each other's bytes for results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport.hpp"

namespace cpudist {

enum class Operation : uint8_t {
  kBarrier,
  kBroadcast,
  kAllreduce,
  kReduce,
  kAllgather,
  kReduceScatter,
  kAlltoall,
  kLeave
};

class Signature {
 public:
  // `count`: elements; where shares differ, this rank's or those of all. `argument`: the reduction, the root, or both.
  explicit Signature(Operation operation, uint64_t count = 0, DataType type = DataType::kInt8, int argument = 0)
      : bits_(uint64_t{1} << 63 | static_cast<uint64_t>(operation) << 60 | static_cast<uint64_t>(type) << 55 |
              static_cast<uint64_t>(argument & 0xfff) << 43 | (count & kCountMask)) {}

  explicit Signature(uint64_t bits) : bits_(bits) {}

  // The same call with another count.
  Signature with_count(uint64_t count) const { return Signature((bits_ & ~kCountMask) | (count & kCountMask)); }

  // The same call with a hash of all ranks' counts in the upper bits of `argument`, which such calls leave free.
  Signature with_hash_of(const std::vector<size_t>& counts) const {
    return Signature((bits_ & ~kHashMask) | (hash_of(counts) & kHashMask));
  }
  Signature without_hash() const { return Signature(bits_ & ~kHashMask); }

  uint64_t bits() const { return bits_; }

  // For example "calls all_reduce of 1024 float32 (argument 0)".
  std::string describe(const std::string& verb) const;

 private:
  static constexpr uint64_t kCountMask = (uint64_t{1} << 43) - 1;
  static constexpr uint64_t kHashMask = uint64_t{0x1ff} << 46;
  uint64_t bits_;
};

}  // namespace cpudist
