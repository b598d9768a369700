#include "datatypes.hpp"

#include <c10/util/Exception.h>

namespace cpudist {

namespace {

ccl::datatype arithmetic_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return ccl::datatype::float64;
    case at::kFloat: return ccl::datatype::float32;
    case at::kHalf: return ccl::datatype::float16;
    case at::kBFloat16: return ccl::datatype::bfloat16;
    case at::kLong: return ccl::datatype::int64;
    case at::kInt: return ccl::datatype::int32;
    case at::kShort: return ccl::datatype::int16;
    case at::kChar: return ccl::datatype::int8;
    case at::kByte:
    case at::kBool: return ccl::datatype::uint8;
    default:
      TORCH_CHECK(false, "ccl: oneCCL cannot reduce tensors of type ", type,
                  "; it takes float64/32/16, bfloat16, int64/32/16/8, uint8 and bool");
  }
}

// On booleans a sum is "any" and a product is "all", as torch's own operators have it.
ccl::reduction logical(c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR: return ccl::reduction::max;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return ccl::reduction::min;
    default: TORCH_CHECK(false, "ccl: booleans have no average or XOR here; use SUM, PRODUCT, MIN or MAX");
  }
}

ccl::reduction arithmetic(c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG: return ccl::reduction::sum;
    case c10d::ReduceOp::PRODUCT: return ccl::reduction::prod;
    case c10d::ReduceOp::MIN: return ccl::reduction::min;
    case c10d::ReduceOp::MAX: return ccl::reduction::max;
    default: TORCH_CHECK(false, "ccl: oneCCL has no bitwise or pre-multiplied reduction; use SUM, AVG, PRODUCT, MIN or MAX");
  }
}

}  // namespace

ccl::datatype carrier(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1: return ccl::datatype::uint8;
    case 2: return ccl::datatype::int16;
    case 4: return ccl::datatype::int32;
    default: return ccl::datatype::int64;
  }
}

size_t carrier_count(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.nbytes()) / ccl::get_datatype_size(carrier(tensor));
}

Reduction::Reduction(const c10d::ReduceOp& op, at::ScalarType type)
    : datatype(arithmetic_type(type)),
      operation(type == at::kBool ? logical(op.op_) : arithmetic(op.op_)),
      average(op.op_ == c10d::ReduceOp::AVG) {}

void Reduction::divide(at::Tensor& tensor, int size) const {
  if (tensor.is_floating_point()) {
    tensor.div_(size);
  } else {
    tensor.div_(size, "trunc");  // towards zero, as C and NCCL divide integers
  }
}

}  // namespace cpudist
