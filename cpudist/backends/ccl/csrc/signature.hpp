// A call in 64 bits, which shared memory publishes with every step and MPI hashes into tags. Ranks that make different
// calls get an error; otherwise they would take each other's bytes for results.
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
  // `count`: elements, of this rank's share where shares differ. `argument`: the reduction, or the root.
  explicit Signature(Operation operation, uint64_t count = 0, DataType type = DataType::kInt8, int argument = 0)
      : bits_(uint64_t{1} << 63 | static_cast<uint64_t>(operation) << 60 | static_cast<uint64_t>(type) << 55 |
              static_cast<uint64_t>(argument & 0xfff) << 43 | (count & kCountMask)) {}

  explicit Signature(uint64_t bits) : bits_(bits) {}

  // The same call with another count.
  Signature with_count(uint64_t count) const { return Signature((bits_ & ~kCountMask) | (count & kCountMask)); }

  // The same call with a hash of all ranks' counts, in bits that the arguments of calls with such counts leave free.
  Signature with_hash_of(const std::vector<size_t>& counts) const {
    return Signature((bits_ & ~kHashMask) | (hash_of(counts) & kHashMask));
  }
  Signature without_hash() const { return Signature(bits_ & ~kHashMask); }

  uint64_t bits() const { return bits_; }

  // "calls all_reduce of 1024 float32"
  std::string describe(const std::string& verb) const;

 private:
  static constexpr uint64_t kCountMask = (uint64_t{1} << 43) - 1;
  static constexpr uint64_t kHashMask = uint64_t{0x1ff} << 46;
  uint64_t bits_;
};

}  // namespace cpudist
