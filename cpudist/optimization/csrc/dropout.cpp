// torch operators that draw dropout on all threads. Autograd and compilers see `masked`, which is linear in its input.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <numeric>
#include <vector>

#include "dropout.hpp"

namespace cpudist {

constexpr int64_t kFew = 1024;  // Below this number of elements torch's own dropout is as fast.

Tensor masked(const Tensor& input, const Tensor& seed, double p) {
  static const auto through_dispatcher = operation("cpudist::masked", masked);
  return through_dispatcher.call(input, seed, p);
}

template <typename Element>
Tensor masked_of(const Tensor& input, const Tensor& seed, double p) {
  Tensor out = at::empty_like(input);
  const Element scale = 1 / static_cast<float>(1 - p);  // rounded as torch rounds it
  const Mask mask = mask_of(seed.item<int64_t>(), p, scale);
  multiply(input.const_data_ptr<Element>(), out.mutable_data_ptr<Element>(), mask, input.numel());
  return out;
}

Tensor masked_without_gradient(const Tensor& input, const Tensor& seed, double p) {
  if (input.is_meta()) return at::empty_like(input.contiguous());  // a compiler asks for the shape
  const bool single = input.scalar_type() == at::kFloat;           // otherwise bfloat16; other types raise an error
  return (single ? masked_of<float> : masked_of<at::BFloat16>)(input.contiguous(), seed, p);
}

// Keeps the seed for the backward pass, which draws the mask again.
struct Masked : torch::autograd::Function<Masked> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& seed, double p) {
    context->save_for_backward({seed});
    context->saved_data["p"] = p;
    const at::AutoDispatchBelowADInplaceOrView below;
    return masked(input, seed, p);
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, std::vector<Tensor> gradients) {
    const Tensor& gradient = gradients[0];
    const auto product = [&](const Tensor& with) {
      return masked(with, context->get_saved_variables()[0], context->saved_data["p"].toDouble());
    };
    const bool batched = at::functorch::isBatchedTensor(gradient);  // all examples of a vmap have one mask
    return {batched ? gradient * product(at::ones(gradient.sizes(), gradient.options())) : product(gradient), {}, {}};
  }
};

Tensor masked_with_gradient(const Tensor& input, const Tensor& seed, double p) { return Masked::apply(input, seed, p); }

bool is_plain(const Tensor& tensor) {
  using c10::impl::TorchDispatchModeKey, c10::impl::TorchDispatchModeTLS;
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
      at::functorch::isBatchedTensor(tensor) || tensor._fw_grad(0).defined()) {
    return false;
  }
  const auto* found = tensor.unsafeGetTensorImpl();
  const bool of_compiler = TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE).has_value();
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         (of_compiler || !found->is_python_dispatch()) && !found->has_symbolic_sizes_strides() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
}

Tensor cast(const Tensor& tensor) {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), tensor, at::kCPU);
}

// Replaces torch.dropout; the seed is the next number of torch's generator.
Tensor dropout(const Tensor& input, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard torchs(kKey);
  if (!train || !(p > 0 && p < 1) || !is_plain(input) || input.numel() < kFew) return at::dropout(input, p, train);
  const Tensor seed = draw_seed();
  if (input.is_contiguous()) return masked(input, seed, p);
  // Elements are drawn in the order of memory; the result has the same order in memory.
  std::vector<int64_t> order(input.dim()), inverse(input.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return input.stride(a) > input.stride(b); });
  for (int64_t i = 0; i < input.dim(); ++i) inverse[order[i]] = i;
  return masked(input.permute(order), seed, p).permute(inverse);
}

bool has_kernels() {
#if defined(__x86_64__)
  return has_avx512() && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// torch's attention while kKey is included. Compilers trace this operator, because they cannot trace the key's guard.
Tensor traced_attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                        double p, bool causal, std::optional<double> scale, bool gqa) {
  const c10::impl::IncludeDispatchKeyGuard ours(kKey);
  return at::scaled_dot_product_attention(query, key, value, mask, p, causal, scale, gqa);
}

TORCH_LIBRARY(cpudist, library) {
  library.def("dispatch_key() -> int", [] { return static_cast<int64_t>(kKey); });
  library.def("has_kernels() -> bool", has_kernels);
  library.def("dropout(Tensor input, float p, bool train) -> Tensor", dropout);
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
      "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
      traced_attention);
  library.def("masked(Tensor input, Tensor seed, float p) -> Tensor");
}

TORCH_LIBRARY_IMPL(cpudist, CPU, library) { library.impl("masked", masked_without_gradient); }
TORCH_LIBRARY_IMPL(cpudist, Meta, library) { library.impl("masked", masked_without_gradient); }
TORCH_LIBRARY_IMPL(cpudist, Autograd, library) { library.impl("masked", masked_with_gradient); }
// Without this kernel, vmap would call the operator outside vmap, or once for each example.
TORCH_LIBRARY_IMPL(cpudist, FuncTorchVmapMode, library) { library.impl("dropout", dropout); }
TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { library.impl("dropout", dropout); }

}  // namespace cpudist
