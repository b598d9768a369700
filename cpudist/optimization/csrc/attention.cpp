// scaled_dot_product_attention with dropout in one pass (attention_kernels.hpp), and its gradients. It keeps no
// probabilities and no mask: the backward pass computes both again.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "dropout.hpp"
#if defined(__x86_64__)
#include "attention_kernels.hpp"
#endif

namespace cpudist {

#if defined(__x86_64__)
template <typename Element>
static Strided<const Element> reading(const Tensor& tensor) {
  return {tensor.const_data_ptr<Element>(), {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}
template <typename Element>
static Strided<Element> writing(const Tensor& tensor) {
  return {tensor.mutable_data_ptr<Element>(), {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}

static Attention describe(const Tensor& query, const Tensor& key, const OptionalTensor& mask, const Tensor& seed,
                          double p, bool causal, double scale) {
  Attention call{.heads = query.size(1),
                 .key_heads = key.size(1),
                 .queries = query.size(2),
                 .keys = key.size(2),
                 .size = query.size(3),
                 .scale = static_cast<float>(scale),
                 .causal = causal,
                 .drops = p > 0,
                 .dropout = {},
                 .bias = {}};
  if (call.drops) call.dropout = mask_of(seed.item<int64_t>(), p, static_cast<float>(1 / (1 - p)));
  if (mask) {
    const Tensor each = mask->expand({query.size(0), call.heads, call.queries, call.keys});
    call.bias = {each.const_data_ptr(), each.scalar_type(), {}};
    std::copy_n(each.strides().begin(), 4, call.bias.strides);
  }
  return call;
}

// Divides the heads of all examples over torch's threads.
template <typename Kernel>
static void run(const Kernel& kernel, const Attention& call, int64_t batch, int64_t heads) {
  at::parallel_for(0, batch * heads, 1, [&](int64_t from, int64_t to) {
    const Tensor memory = at::empty({Kernel::scratch(call)}, at::kByte);
    for (int64_t i = from; i < to; ++i) kernel.run(call, i / heads, i % heads, Scratch(memory.mutable_data_ptr()));
    at::native::cpublas::brgemm_release();
  });
}
#endif

// Tokens come before heads, as models want outputs and gradients.
static Tensor like(const Tensor& tensor) {
  return at::empty({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor.options()).transpose(1, 2);
}

static std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const OptionalTensor& mask, const Tensor& seed, double p, bool causal,
                                          double scale) {
  Tensor output = like(query);
  Tensor rows = at::empty({query.size(0), query.size(1), query.size(2), 2}, query.options().dtype(at::kFloat));
#if defined(__x86_64__)
  if (!query.is_meta()) {
    const Attention call = describe(query, key, mask, seed, p, causal, scale);
    const auto compute = [&]<typename Element>(Element) {
      const Forward<Element> kernel{reading<Element>(query), reading<Element>(key), reading<Element>(value),
                                    writing<Element>(output), static_cast<Row*>(rows.mutable_data_ptr())};
      run(kernel, call, query.size(0), call.heads);
    };
    query.scalar_type() == at::kFloat ? compute(float()) : compute(at::BFloat16());
  }
#endif
  return {output, rows};
}

static std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& gradient, const Tensor& query, const Tensor& key,
                                                   const Tensor& value, const OptionalTensor& mask, const Tensor& seed,
                                                   const Tensor& output, const Tensor& rows, double p, bool causal,
                                                   double scale) {
  Tensor of_query = like(query), of_key = like(key), of_value = like(value);
#if defined(__x86_64__)
  if (!query.is_meta()) {
    const Attention call = describe(query, key, mask, seed, p, causal, scale);
    const auto compute = [&]<typename Element>(Element) {
      const Backward<Element> kernel{
          reading<Element>(query),  reading<Element>(key),      reading<Element>(value),
          reading<Element>(output), reading<Element>(gradient), writing<Element>(of_query),
          writing<Element>(of_key), writing<Element>(of_value), static_cast<const Row*>(rows.const_data_ptr())};
      run(kernel, call, query.size(0), call.key_heads);
    };
    query.scalar_type() == at::kFloat ? compute(float()) : compute(at::BFloat16());
  }
#endif
  return {of_query, of_key, of_value};
}

// The gradients by operators of torch, which have gradients themselves and work in vmap.
static std::vector<Tensor> differentiable_backward(const Tensor& gradient, const Tensor& query, const Tensor& key,
                                                   const Tensor& value, const Tensor& mask, const Tensor& seed,
                                                   double p, bool causal, double scale) {
  const int64_t shared = query.size(1) / key.size(1), keys = key.size(2), groups = (keys + kGroup - 1) / kGroup;
  const auto each_head = [&](const Tensor& tensor) { return tensor.to(at::kFloat).repeat_interleave(shared, 1); };
  const auto sum_shared = [&](const Tensor& tensor) {
    return tensor.unflatten(1, {key.size(1), shared}).sum(2).to(key.scalar_type());
  };
  const Tensor q = query.to(at::kFloat), k = each_head(key), v = each_head(value), g = gradient.to(at::kFloat);
  Tensor scores = q.matmul(k.mT()) * scale;
  if (causal) scores = scores.masked_fill(at::ones_like(scores, at::kBool).triu(1), -INFINITY);
  if (mask.defined()) {
    scores = mask.scalar_type() == at::kBool ? scores.masked_fill(mask.logical_not(), -INFINITY) : scores + mask;
  }
  const Tensor whole = at::_safe_softmax(scores, -1);
  Tensor kept = at::ones({query.size(0), query.size(1), query.size(2), groups * static_cast<int64_t>(kGroup)});
  if (p > 0) kept = masked(kept, seed, p);
  kept = kept.narrow(-1, 0, keys);
  const Tensor of_whole = g.matmul(v.mT()) * kept;
  const Tensor of_scores = whole * (of_whole - (of_whole * whole).sum(-1, true)) * scale;
  return {of_scores.matmul(k).to(query.scalar_type()), sum_shared(of_scores.mT().matmul(q)),
          sum_shared((whole * kept).mT().matmul(g))};
}

struct OnePass : torch::autograd::Function<OnePass> {
  static std::vector<Tensor> forward(torch::autograd::AutogradContext* context, const Tensor& query, const Tensor& key,
                                     const Tensor& value, const OptionalTensor& mask, const Tensor& seed, double p,
                                     bool causal, double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("cpudist::attention_forward", "")
                                      .typed<decltype(cpudist::forward)>();
    const auto [output, rows] = operation.call(query, key, value, mask, seed, p, causal, scale);
    context->save_for_backward({query, key, value, mask.value_or(Tensor()), seed, output, rows});
    context->saved_data["p"] = p;
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    context->mark_non_differentiable({rows});
    return {output, rows};
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, std::vector<Tensor> gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2], &mask = saved[3], &seed = saved[4];
    const double p = context->saved_data["p"].toDouble(), scale = context->saved_data["scale"].toDouble();
    const bool causal = context->saved_data["causal"].toBool();
    if (at::GradMode::is_enabled() || at::functorch::isBatchedTensor(gradients[0])) {
      auto found = differentiable_backward(gradients[0], query, key, value, mask, seed, p, causal, scale);
      found.resize(8);
      return found;
    }
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("cpudist::attention_backward", "")
                                      .typed<decltype(cpudist::backward)>();
    const auto found =
        operation.call(gradients[0], query, key, value, mask.defined() ? OptionalTensor(mask) : std::nullopt, seed,
                       saved[5], saved[6], p, causal, scale);
    return {std::get<0>(found), std::get<1>(found), std::get<2>(found), {}, {}, {}, {}, {}};
  }
};

static std::tuple<Tensor, Tensor> forward_with_gradient(const Tensor& query, const Tensor& key, const Tensor& value,
                                                        const OptionalTensor& mask, const Tensor& seed, double p,
                                                        bool causal, double scale) {
  const auto found = OnePass::apply(query, key, value, mask, seed, p, causal, scale);
  return {found[0], found[1]};
}

static bool has_kernels() {
#if defined(__x86_64__)
  return has_avx512() && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// Returns whether the kernels support a call. All others are torch's.
static bool fits(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double p,
                 bool causal, bool gqa) {
  if (!has_kernels() || p >= 1 || (mask && causal)) return false;
  const auto type = query.scalar_type();
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!is_plain(*tensor) || tensor->scalar_type() != type || tensor->dim() != 4 || !tensor->numel()) return false;
    if (tensor->size(0) != query.size(0) || tensor->size(3) != query.size(3)) return false;
  }
  const int64_t heads = query.size(1), key_heads = key.size(1);
  if (key.sizes() != value.sizes() || (gqa ? heads % key_heads : heads - key_heads) != 0) return false;
  if (!mask) return true;
  const bool known =
      mask->scalar_type() == at::kBool || mask->scalar_type() == at::kFloat || mask->scalar_type() == type;
  const int64_t shape[] = {query.size(0), heads, query.size(2), key.size(2)};
  return known && mask->is_cpu() && !mask->requires_grad() && !at::functorch::isBatchedTensor(*mask) &&
         at::is_expandable_to(mask->sizes(), shape);
}

// torch's attention in modules that the optimizer has changed.
static Tensor attention(c10::DispatchKeySet keys, const Tensor& query, const Tensor& key, const Tensor& value,
                        const OptionalTensor& mask, double p, bool causal, std::optional<double> scale, bool gqa) {
  const Tensor q = cast(query), k = cast(key), v = cast(value);
  const OptionalTensor m = mask ? OptionalTensor(cast(*mask)) : std::nullopt;
  if (!fits(q, k, v, m, p, causal, gqa)) {
    const c10::DispatchKeySet torchs(c10::DispatchKeySet::FULL_AFTER, kKey);
    return at::_ops::scaled_dot_product_attention::redispatch(keys & torchs, query, key, value, mask, p, causal, scale,
                                                              gqa);
  }
  const c10::impl::ExcludeDispatchKeyGuard torchs(kKey);
  const Tensor seed = p > 0 ? draw_seed() : at::empty({0}, at::kLong);
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("cpudist::attention_forward", "").typed<decltype(forward)>();
  return std::get<0>(
      operation.call(q, k, v, m, seed, p, causal, scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))))));
}

// The same outside such modules. Compilers trace this operator, because they cannot trace the guard.
static Tensor traced_attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                               double p, bool causal, std::optional<double> scale, bool gqa) {
  const c10::impl::IncludeDispatchKeyGuard ours(kKey);
  return at::scaled_dot_product_attention(query, key, value, mask, p, causal, scale, gqa);
}

TORCH_LIBRARY_FRAGMENT(cpudist, library) {
  library.def("has_kernels() -> bool", has_kernels);
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
      "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
      traced_attention);
  library.def(
      "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor seed, float p, bool causal, "
      "float scale) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor seed, "
      "Tensor output, Tensor rows, float p, bool causal, float scale) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(cpudist, CPU, library) {
  library.impl("attention_forward", forward);
  library.impl("attention_backward", backward);
}
TORCH_LIBRARY_IMPL(cpudist, Meta, library) {
  library.impl("attention_forward", forward);
  library.impl("attention_backward", backward);
}
TORCH_LIBRARY_IMPL(cpudist, Autograd, library) { library.impl("attention_forward", forward_with_gradient); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { library.impl("scaled_dot_product_attention", attention); }

}  // namespace cpudist
