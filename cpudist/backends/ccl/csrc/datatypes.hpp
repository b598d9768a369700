// torch's element types and reductions in oneCCL's terms.
#pragma once

#include <ATen/ATen.h>
#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace cpudist {

// For moving data any type of the same width does.
ccl::datatype carrier(const at::Tensor& tensor);

// Elements of carrier() in the tensor: a complex128 travels as two int64.
size_t carrier_count(const at::Tensor& tensor);

// How oneCCL computes one of c10d's reductions.
struct Reduction {
  ccl::datatype datatype;
  ccl::reduction operation;
  bool average;  // oneCCL sums, the caller divides

  // Throws for what oneCCL cannot do.
  Reduction(const c10d::ReduceOp& operation, at::ScalarType type);

  void divide(at::Tensor& tensor, int size) const;
};

}  // namespace cpudist
