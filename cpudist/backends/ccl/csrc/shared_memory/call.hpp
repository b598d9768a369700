// What a rank calls, in 64 bits that travel with every step: ranks that call different things find out, where otherwise
// they would exchange each other's bytes for a wrong result.
#pragma once

#include <cstdint>
#include <string>

#include "../transport.hpp"

namespace cpudist::shared_memory {

enum class Operation : uint8_t { kBarrier, kBroadcast, kAllreduce, kReduce, kAllgather, kReduceScatter, kAlltoall };

class Call {
 public:
  // `count`: elements, on this rank the same as on all others. `argument`: the reduction, or the root.
  explicit Call(Operation operation, uint64_t count = 0, DataType type = DataType::kInt8, int argument = 0)
      : bits_(uint64_t{1} << 63 | static_cast<uint64_t>(operation) << 59 | static_cast<uint64_t>(type) << 55 |
              static_cast<uint64_t>(argument & 0xfff) << 43 | (count & kCountMask)) {}

  explicit Call(uint64_t bits) : bits_(bits) {}
  uint64_t bits() const { return bits_; }

  // "allreduce of 1024 float32"
  std::string describe() const;

 private:
  static constexpr uint64_t kCountMask = (uint64_t{1} << 43) - 1;
  uint64_t bits_;
};

}  // namespace cpudist::shared_memory
