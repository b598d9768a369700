#include "datatypes.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "errors.hpp"

namespace cpudist {

// Returns nothing for a type that transports cannot reduce.
static std::optional<DataType> own_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return DataType::kFloat64;
    case at::kFloat: return DataType::kFloat32;
    case at::kHalf: return DataType::kFloat16;
    case at::kBFloat16: return DataType::kBFloat16;
    case at::kLong: return DataType::kInt64;
    case at::kInt: return DataType::kInt32;
    case at::kShort: return DataType::kInt16;
    case at::kChar: return DataType::kInt8;
    case at::kByte: return DataType::kUint8;
    case at::kBool: return DataType::kBool;
    default: return std::nullopt;
  }
}

DataType carrier(const at::Tensor& tensor) {
  if (const auto type = own_type(tensor.scalar_type())) return *type;
  const auto name = c10::getDtypeNames(tensor.scalar_type()).first;
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& type) { return type.name == name; });
  if (found != std::end(kTypes)) return static_cast<DataType>(found - std::begin(kTypes));
  switch (tensor.element_size()) {
    case 1: return DataType::kUint8;
    case 2: return DataType::kInt16;
    case 4: return DataType::kInt32;
    default: return DataType::kInt64;
  }
}

size_t carrier_count(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.nbytes()) / size_of(carrier(tensor));
}

DataType arithmetic_type(at::ScalarType type) {
  const auto own = own_type(type);
  check_type(own.has_value(), "cannot reduce tensors of type ", type,
             "; convert them to float64/32/16, bfloat16, int64/32/16/8, uint8 or bool");
  return *own;
}

// On booleans a sum is "any" and a product is "all", as in torch's operators.
static Reduction logical(c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR: return Reduction::kMax;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return Reduction::kMin;
    case c10d::ReduceOp::BXOR: return Reduction::kBitXor;
    default: value_error("booleans have no average; use SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  }
}

static Reduction arithmetic(c10d::ReduceOp::RedOpType operation) {
  switch (operation) {
    case c10d::ReduceOp::SUM: return Reduction::kSum;
    case c10d::ReduceOp::AVG: return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT: return Reduction::kProduct;
    case c10d::ReduceOp::MIN: return Reduction::kMin;
    case c10d::ReduceOp::MAX: return Reduction::kMax;
    case c10d::ReduceOp::BAND: return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR: return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR: return Reduction::kBitXor;
    default: value_error("there is no pre-multiplied reduction; use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
  }
}

Reduction reduction(const c10d::ReduceOp& operation, at::ScalarType type) {
  if (type == at::kBool) return logical(operation.op_);
  const auto reduction = arithmetic(operation.op_);
  check_value(!is_bitwise(reduction) || at::isIntegralType(type, /*includeBool=*/false),
              "bitwise reductions take integers and booleans, got ", type, "; convert it");
  return reduction;
}

}  // namespace cpudist
