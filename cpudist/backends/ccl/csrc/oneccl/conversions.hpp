// oneCCL's names of our types and reductions, and the conversion of an average into a sum.
#pragma once

#include "communicator.hpp"

namespace cpudist::oneccl {

inline ccl::datatype to_ccl(DataType type) {
  using ccl::datatype;
  static constexpr datatype kDatatypes[] = {datatype::int8,    datatype::uint8,   datatype::int16,    datatype::int32,
                                            datatype::int64,   datatype::float16, datatype::bfloat16, datatype::float32,
                                            datatype::float64, datatype::uint8};
  return kDatatypes[static_cast<size_t>(type)];
}

// For calls that only move data: MPI has no 16-bit floating-point types of its own.
inline ccl::datatype to_ccl_bits(DataType type) {
  switch (size_of(type)) {
    case 1: return ccl::datatype::uint8;
    case 2: return ccl::datatype::int16;
    case 4: return ccl::datatype::int32;
    default: return ccl::datatype::int64;
  }
}

// Takes any reduction that is not bitwise; oneCCL has no bitwise ones.
inline ccl::reduction to_ccl(Reduction reduction) {
  using Ccl = ccl::reduction;
  static constexpr Ccl kReductions[] = {Ccl::sum, Ccl::prod, Ccl::min, Ccl::max, Ccl::sum};
  return kReductions[static_cast<size_t>(reduction)];
}

// Whether an average divides before or after the sum. float16 ends at 65504, so its values are divided before.
struct Average {
  Average(Reduction reduction, DataType type)
      : before(reduction == Reduction::kAverage && type == DataType::kFloat16),
        after(reduction == Reduction::kAverage && type != DataType::kFloat16) {}

  bool before;
  bool after;
};

}  // namespace cpudist::oneccl
