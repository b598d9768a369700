// Conversion of torch's element types and reductions to those of transports.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "transport.hpp"

namespace cpudist {

// The type for calls that only move data: the tensor's own or, if kTypes lacks it, an integer type of its width.
DataType carrier(const at::Tensor& tensor);

// Number of elements of type carrier() in the tensor; a complex128 counts as two elements of 8 bytes.
size_t carrier_count(const at::Tensor& tensor);

// Throws TypeError for types that cannot be reduced.
DataType arithmetic_type(at::ScalarType type);

// Throws ValueError for a reduction that does not exist for this type.
Reduction reduction(const c10d::ReduceOp& operation, at::ScalarType type);

}  // namespace cpudist
