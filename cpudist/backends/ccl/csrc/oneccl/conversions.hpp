// oneCCL's names of our types and reductions, and the conversion of an average into a sum.
#pragma once

#include <stdexcept>

#include "communicator.hpp"

namespace cpudist::oneccl {

inline ccl::datatype to_ccl(DataType type) {
  switch (type) {
    case DataType::kInt8: return ccl::datatype::int8;
    case DataType::kBool:
    case DataType::kUint8: return ccl::datatype::uint8;
    case DataType::kInt16: return ccl::datatype::int16;
    case DataType::kInt32: return ccl::datatype::int32;
    case DataType::kInt64: return ccl::datatype::int64;
    case DataType::kFloat16: return ccl::datatype::float16;
    case DataType::kBFloat16: return ccl::datatype::bfloat16;
    case DataType::kFloat32: return ccl::datatype::float32;
    case DataType::kFloat64: return ccl::datatype::float64;
  }
  throw std::invalid_argument("unknown data type");
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

inline ccl::reduction to_ccl(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage: return ccl::reduction::sum;
    case Reduction::kProduct: return ccl::reduction::prod;
    case Reduction::kMin: return ccl::reduction::min;
    case Reduction::kMax: return ccl::reduction::max;
    default: break;  // oneCCL has no bitwise reductions
  }
  throw std::invalid_argument("unknown reduction");
}

// When the divisions of an average are done. float16 ends at 65504, so its values are divided before they are added.
struct Average {
  Average(Reduction reduction, DataType type)
      : before(reduction == Reduction::kAverage && type == DataType::kFloat16),
        after(reduction == Reduction::kAverage && type != DataType::kFloat16) {}

  bool before;
  bool after;
};

}  // namespace cpudist::oneccl
