// Declarations that the operators with dropout share.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DispatchKey.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "masks.hpp"

namespace cpudist {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// While a thread includes this dispatch key, aten::dropout and aten::scaled_dot_product_attention use the kernels of
// this library. Autocast replaces operators in the same way. torch reserves this key for other libraries.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

// Returns the dispatcher's operator of this name, typed with the signature of a kernel.
template <typename Kernel>
auto operation(const char* name, Kernel) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<std::remove_pointer_t<Kernel>>();
}

// Multiplies `input` by a mask and by 1 / (1 - p). The seed is a scalar.
Tensor masked(const Tensor& input, const Tensor& seed, double p);

// Returns whether the kernels support a tensor, such as a compiler's fake tensor. Other Python subclasses, nested
// tensors, symbolic shapes, torch.func and forward derivatives are left to torch's operators.
bool is_plain(const Tensor& tensor);

// Returns whether the kernels for AVX-512 and oneDNN's products may be used.
bool has_kernels();

// Returns the tensor in autocast's type, or unchanged if autocast is off.
Tensor cast(const Tensor& tensor);

// The next number of torch's generator.
inline Tensor draw_seed() { return at::randint(std::numeric_limits<int64_t>::max(), {}, at::kLong); }

inline Mask mask_of(int64_t seed, double p, float scale) {
  const auto threshold = static_cast<uint32_t>(std::min(std::round((1 - p) * 0x1p32), 0x1p32 - 1));
  return {static_cast<uint64_t>(seed), threshold, scale};
}

}  // namespace cpudist
