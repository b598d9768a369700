// Operators of torch that draw dropout on all threads. Autograd, torch.func and compilers see `masked`, a linear function.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "masks.hpp"

namespace cpudist {

using at::Tensor;
using std::optional;

constexpr int64_t kFew = 1024;  // elements; torch's own dropout is as fast for fewer

// Multiplies `input` by masks and by 1 / (1 - p). The shape of `seeds` is the first part of the shape of `input`: each
// seed's mask is for the elements after it, in the order of their indices.
Tensor masked(const Tensor& input, const Tensor& seeds, double p) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("cpudist::masked", "")
                                    .typed<Tensor(const Tensor&, const Tensor&, double)>();
  return operation.call(input, seeds, p);
}

Tensor masked_on_cpu(const Tensor& input, const Tensor& seeds, double p) {
  const Tensor in = input.contiguous(), keys = seeds.contiguous();
  Tensor out = at::empty_like(in);
  const auto threshold = static_cast<uint32_t>(std::min(std::round((1 - p) * 0x1p32), 0x1p32 - 1));
  const int64_t count = keys.numel() ? in.numel() / keys.numel() : 0;
  const auto draw = [&]<typename Element>(Element*) {
    const Element scale = 1 / static_cast<float>(1 - p);  // rounded as torch rounds it
    for (int64_t i = 0; i < keys.numel(); ++i) {
      const Mask mask{static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i]), threshold, scale};
      multiply(in.const_data_ptr<Element>() + i * count, out.mutable_data_ptr<Element>() + i * count, mask, count);
    }
  };
  if (in.scalar_type() == at::kFloat) {
    draw(static_cast<float*>(nullptr));
  } else {
    draw(static_cast<at::BFloat16*>(nullptr));  // or an error of the type
  }
  return out;
}

Tensor masked_shape(const Tensor& input, const Tensor&, double) {
  return at::empty_like(input, at::MemoryFormat::Contiguous);
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
  // A C++ autograd function has no forward derivative and is not for torch.func; a product with the mask has all of it.
  Tensor mask;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    mask = masked(at::ones_like(input), seeds, p);
  }
  return input * mask;
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
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), examples);
    return tensor.expand(sizes);
  };
  return at::functorch::makeBatched(masked(with_examples(input), with_examples(seeds), p), 0, level);
}

// Whether the masks of a tensor are drawn here: no compiler, subclass in Python, or nested tensor sees to them itself.
bool is_drawn(const Tensor& input) {
  const auto* tensor = input.unsafeGetTensorImpl();
  const bool plain = input.is_cpu() && input.layout() == at::kStrided && !input.is_nested();
  const bool of_python = tensor->is_python_dispatch() || tensor->has_symbolic_sizes_strides();
  return plain && !of_python && (input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16);
}

// torch.dropout, by the next number of torch's generator.
Tensor dropout(const Tensor& input, double p, bool train) {
  if (!train || !(p > 0 && p < 1) || !is_drawn(input) || input.numel() < kFew) return at::dropout(input, p, train);
  const Tensor seed = at::randint(std::numeric_limits<int64_t>::max(), {}, at::kLong);
  if (input.is_contiguous()) return masked(input, seed, p);
  // Elements are taken in the order of memory, and the result has the same.
  std::vector<int64_t> order(input.dim()), inverse(input.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return input.stride(a) > input.stride(b); });
  for (int64_t i = 0; i < input.dim(); ++i) inverse[order[i]] = i;
  return masked(input.permute(order), seed, p).permute(inverse);
}

// torch.nn.functional.scaled_dot_product_attention. With dropout torch has no fused kernel for CPUs: it computes the
// weights, in float32, drops some, and multiplies by the value, as done here.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& attn_mask,
                 double dropout_p, bool is_causal, optional<double> scale, bool enable_gqa) {
  if (!(dropout_p > 0 && dropout_p < 1) || !is_drawn(query)) {
    return at::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  }
  const auto type = at::globalContext().allowFP16BF16ReductionMathSDP() ? query.scalar_type() : at::kFloat;
  optional<Tensor> mask = attn_mask;
  if (mask && mask->scalar_type() == at::kBool) {
    mask = at::zeros_like(*mask, type).masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
  } else if (mask) {
    mask = mask->to(type);
  }
  // The same function of torch returns the weights, too. With a value of no columns it multiplies nothing by them.
  const Tensor nothing = value.narrow(-1, 0, 0).to(type);
  Tensor weights = std::get<1>(at::_scaled_dot_product_attention_math(query.to(type), key.to(type), nothing, mask, 0.0,
                                                                      is_causal, std::nullopt, scale, enable_gqa));
  Tensor all = value.to(type);
  if (enable_gqa) all = all.repeat_interleave(query.size(-3) / value.size(-3), -3);
  return at::matmul(cpudist::dropout(weights, dropout_p, true), all).to(query.scalar_type());
}

// As autocast does for torch's own.
Tensor attention_of_autocast(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                             double dropout_p, bool is_causal, optional<double> scale, bool enable_gqa) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const auto cast = [](const auto& tensor) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), tensor, at::kCPU);
  };
  return attention(cast(query), cast(key), cast(value), cast(mask), dropout_p, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY(cpudist, library) {
  library.def("dropout(Tensor input, float p=0.5, bool train=True) -> Tensor", dropout);
  library.def("masked(Tensor input, Tensor seeds, float p) -> Tensor");
  library.def(
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
      "dropout_p=0.0, "
      "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
      attention);
}

TORCH_LIBRARY_IMPL(cpudist, CPU, library) { library.impl("masked", masked_on_cpu); }
TORCH_LIBRARY_IMPL(cpudist, Meta, library) { library.impl("masked", masked_shape); }
TORCH_LIBRARY_IMPL(cpudist, Autograd, library) { library.impl("masked", masked_with_gradient); }
TORCH_LIBRARY_IMPL(cpudist, FuncTorchBatched, library) { library.impl("masked", masked_of_examples); }
TORCH_LIBRARY_IMPL(cpudist, FuncTorchVmapMode, library) {
  library.impl("dropout", dropout);  // otherwise called outside vmap, or once for each example
  library.impl("scaled_dot_product_attention", attention);
}
TORCH_LIBRARY_IMPL(cpudist, AutocastCPU, library) {
  library.impl("scaled_dot_product_attention", attention_of_autocast);
}

}  // namespace cpudist
