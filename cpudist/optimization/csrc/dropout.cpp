// Operators of torch that draw dropout on all threads. Autograd, torch.func and compilers see `masked`, a linear function.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "dropout.hpp"

namespace cpudist {

constexpr int64_t kFew = 1024;  // Below this number of elements torch's own dropout is as fast.

// Multiplies `input` by masks and by 1 / (1 - p). The shape of `seeds` is the first part of the shape of `input`: each
// seed's mask is for the elements after it, in the order of their indices.
Tensor masked(const Tensor& input, const Tensor& seeds, double p) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("cpudist::masked", "")
                                    .typed<Tensor(const Tensor&, const Tensor&, double)>();
  return operation.call(input, seeds, p);
}

template <typename Element>
Tensor masked_of(const Tensor& input, const Tensor& seeds, double p) {
  Tensor out = at::empty_like(input);
  const Element scale = 1 / static_cast<float>(1 - p);  // rounded as torch rounds it
  const int64_t count = seeds.numel() ? input.numel() / seeds.numel() : 0;
  for (int64_t i = 0; i < seeds.numel(); ++i) {
    const Mask mask = mask_of(seeds.const_data_ptr<int64_t>()[i], p, scale);
    multiply(input.const_data_ptr<Element>() + i * count, out.mutable_data_ptr<Element>() + i * count, mask, count);
  }
  return out;
}

Tensor masked_without_gradient(const Tensor& input, const Tensor& seeds, double p) {
  if (input.is_meta()) return at::empty_like(input.contiguous());  // a compiler asks for the shape
  const bool single = input.scalar_type() == at::kFloat;           // otherwise bfloat16, or an error of the type
  return (single ? masked_of<float> : masked_of<at::BFloat16>)(input.contiguous(), seeds.contiguous(), p);
}

// Keeps the seeds for the backward pass, which draws the masks again.
struct Masked : torch::autograd::Function<Masked> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& seeds, double p) {
    context->save_for_backward({seeds});
    context->saved_data["p"] = p;
    const at::AutoDispatchBelowADInplaceOrView below;
    return masked(input, seeds, p);
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, std::vector<Tensor> gradients) {
    return {masked(gradients[0], context->get_saved_variables()[0], context->saved_data["p"].toDouble()), {}, {}};
  }
};

Tensor masked_with_gradient(const Tensor& input, const Tensor& seeds, double p) {
  const bool transformed = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
  if (!transformed && !input._fw_grad(0).defined()) return Masked::apply(input, seeds, p);
  // A C++ autograd function has no forward derivative and does not work in torch.func; a product with the mask does.
  const auto mask = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return masked(at::ones_like(input), seeds, p);
  };
  return input * mask();
}

// Under torch.vmap: the examples become the first dimension of the input and of the seeds.
Tensor masked_of_examples(const Tensor& input, const Tensor& seeds, double p) {
  using at::functorch::maybeGetBatchedImpl;
  const c10::impl::ExcludeDispatchKeyGuard unbatched(c10::DispatchKey::FuncTorchBatched);
  int64_t level = 0, examples = 0;  // of the innermost vmap
  for (const Tensor* tensor : {&input, &seeds}) {
    const auto* batch = maybeGetBatchedImpl(*tensor);
    if (batch && batch->level() > level) level = batch->level(), examples = batch->value().size(batch->bdim());
  }
  const auto with_examples = [&](const Tensor& tensor) {
    const auto* batch = maybeGetBatchedImpl(tensor);
    if (batch && batch->level() == level) return batch->value().movedim(batch->bdim(), 0);
    return tensor.unsqueeze(0).repeat_interleave(examples, 0);
  };
  return at::functorch::makeBatched(masked(with_examples(input), with_examples(seeds), p), 0, level);
}

// Returns whether the kernel supports a tensor, which may be a compiler's stand-in. Python's other subclasses, nested
// tensors and symbolic shapes have torch's dropout.
bool is_supported(const Tensor& input) {
  const auto* tensor = input.unsafeGetTensorImpl();
  const bool plain = input.is_cpu() && input.layout() == at::kStrided && !input.is_nested();
  const bool of_compiler = c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
  const bool of_python = (tensor->is_python_dispatch() && !of_compiler) || tensor->has_symbolic_sizes_strides();
  return plain && !of_python && (input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16);
}

bool is_plain(const Tensor& tensor) {
  return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode) &&
         is_supported(tensor) && !at::functorch::isBatchedTensor(tensor) && !tensor._fw_grad(0).defined();
}

Tensor cast(const Tensor& tensor) {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), tensor, at::kCPU);
}

// torch.dropout; the seed is the next number of torch's generator.
Tensor dropout(const Tensor& input, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard torchs(kKey);
  if (!train || !(p > 0 && p < 1) || !is_supported(input) || input.numel() < kFew) return at::dropout(input, p, train);
  const Tensor seed = draw_seed();
  if (input.is_contiguous()) return masked(input, seed, p);
  // Elements are taken in the order of memory, and the result has the same.
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

// torch's attention with the operators of this library. Compilers trace this one, because they cannot trace the guard.
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
  library.def("masked(Tensor input, Tensor seeds, float p) -> Tensor");
}

TORCH_LIBRARY_IMPL(cpudist, CPU, library) { library.impl("masked", masked_without_gradient); }
TORCH_LIBRARY_IMPL(cpudist, Meta, library) { library.impl("masked", masked_without_gradient); }
TORCH_LIBRARY_IMPL(cpudist, Autograd, library) { library.impl("masked", masked_with_gradient); }
TORCH_LIBRARY_IMPL(cpudist, FuncTorchBatched, library) { library.impl("masked", masked_of_examples); }
// Without this kernel, vmap would call the operator outside vmap, or once for each example.
TORCH_LIBRARY_IMPL(cpudist, FuncTorchVmapMode, library) { library.impl("dropout", dropout); }
TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { library.impl("dropout", dropout); }

}  // namespace cpudist
