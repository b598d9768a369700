// torch's element types and reductions in the transports' terms.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "transport.hpp"

namespace cpudist {

// For moving data any type of the same width does.
DataType carrier(const at::Tensor& tensor);

// Elements of carrier() in the tensor: a complex128 travels as two int64.
size_t carrier_count(const at::Tensor& tensor);

// Throws TypeError for what cannot be reduced.
DataType arithmetic_type(at::ScalarType type);

// Throws ValueError for a reduction that does not exist (for this type).
Reduction reduction(const c10d::ReduceOp& operation, at::ScalarType type);

}  // namespace cpudist
