// scaled_dot_product_attention with dropout in one pass (attention_kernels.hpp), and its gradients. It keeps no
// probabilities and no mask: the backward pass computes both again.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "attention_kernels.hpp"
#include "dropout.hpp"

namespace cpudist {

// Returns the mask as values that are added to the scores, in the shape of the scores.
static Tensor added(const Tensor& mask, at::IntArrayRef shape) {
  auto whole_rows = mask.sizes().vec();
  whole_rows.back() = shape.back();
  const bool boolean = mask.scalar_type() == at::kBool;
  const Tensor values = boolean ? at::zeros(mask.sizes()).masked_fill_(mask.logical_not(), -kInfinity) : mask;
  return values.expand(whole_rows).to(at::kFloat).contiguous().expand(shape);
}

// Returns for each example the number of keys up to the last one that a query sees; at least 1.
static Tensor used_keys(const Tensor& bias) {
  const Tensor rows = bias.stride(1) ? bias.flatten(1, 2) : bias.select(1, 0);
  return rows.ne(-kInfinity).any(1).mul(at::arange(1, bias.size(3) + 1)).amax(1).clamp_min(1);
}

// Runs a pass over the heads of all examples, divided among torch's threads. The operands have the query's type.
template <bool kBackward>
static void run(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                const Tensor& seed, double p, bool causal, double scale, const Tensor& output, const Tensor& rows,
                const Tensor& gradient = {}, const Tensor& of_query = {}, const Tensor& of_key = {},
                const Tensor& of_value = {}) {
  if (query.is_meta()) return;  // a compiler asks for the shapes
  const int64_t heads = query.size(1);
  Attention call{
      heads, key.size(1), query.size(2), key.size(2), query.size(3), static_cast<float>(scale), causal, p > 0, {}, {}};
  if (call.drops) call.dropout = mask_of(seed.item<int64_t>(), p, static_cast<float>(1 / (1 - p)));
  const Tensor bias = mask ? added(*mask, {query.size(0), heads, call.queries, call.keys}) : Tensor();
  call.bias = Strided<float>(bias);
  const Tensor used = mask ? used_keys(bias) : at::full({query.size(0)}, call.keys);
  const auto compute = [&]<typename Element>(Element) {
    using Tokens = Strided<Element>;
    const Operands<Element> of{Tokens(query),  Tokens(key),      Tokens(value),
                               Tokens(output), Tokens(gradient), Tokens(of_query),
                               Tokens(of_key), Tokens(of_value), static_cast<Row*>(rows.data_ptr())};
    at::parallel_for(0, query.size(0) * heads, 1, [&](int64_t from, int64_t to) {
      const Tensor memory = at::empty({scratch_size(call)}, at::kByte);
      for (int64_t i = from; i < to; ++i) {
        const auto pass = kBackward ? backward<Element> : forward<Element>;
        Attention example = call;
        example.used = used.const_data_ptr<int64_t>()[i / heads];
        pass(example, of, i / heads, i % heads, Scratch(memory.mutable_data_ptr()));
      }
      at::native::cpublas::brgemm_release();
    });
  };
  query.scalar_type() == at::kFloat ? compute(float()) : compute(at::BFloat16());
}

// Allocates a result in whose memory tokens come before heads, as models want outputs and gradients.
static Tensor like(const Tensor& tensor, int64_t heads) {
  return at::empty({tensor.size(0), tensor.size(2), heads, tensor.size(3)}, tensor.options()).transpose(1, 2);
}

static std::tuple<Tensor, Tensor> attention_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                                    const OptionalTensor& mask, const Tensor& seed, double p,
                                                    bool causal, double scale) {
  Tensor output = like(query, query.size(1));
  Tensor rows = at::empty({query.size(0), query.size(1), query.size(2), 2}, query.options().dtype(at::kFloat));
  run<false>(query, key, value, mask, seed, p, causal, scale, output, rows);
  return {output, rows};
}

static std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& gradient, const Tensor& query,
                                                             const Tensor& key, const Tensor& value,
                                                             const OptionalTensor& mask, const Tensor& seed,
                                                             const Tensor& output, const Tensor& rows, double p,
                                                             bool causal, double scale) {
  const int64_t heads = query.size(1), key_heads = key.size(1);
  Tensor of_query = like(query, heads), of_key = like(key, heads), of_value = like(value, heads);
  if (mask) of_key.zero_(), of_value.zero_();  // a pass does not write keys that no query sees
  run<true>(query, key, value, mask, seed, p, causal, scale, output, rows, gradient, of_query, of_key, of_value);
  const auto sum_shared = [&](const Tensor& each) {
    return heads == key_heads ? each : each.unflatten(1, {key_heads, heads / key_heads}).sum(2);
  };
  return {of_query, sum_shared(of_key), sum_shared(of_value)};
}

// Computes the gradients with torch's operators, which are themselves differentiable and work in vmap.
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
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& query, const Tensor& key,
                        const Tensor& value, const OptionalTensor& mask, const Tensor& seed, double p, bool causal,
                        double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto pass = operation("cpudist::attention_forward", attention_forward);
    const auto [output, rows] = pass.call(query, key, value, mask, seed, p, causal, scale);
    context->save_for_backward({query, key, value, mask.value_or(Tensor()), seed, output, rows});
    context->saved_data["p"] = p;
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    return output;
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, std::vector<Tensor> gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2], &mask = saved[3], &seed = saved[4];
    const double p = context->saved_data["p"].toDouble(), scale = context->saved_data["scale"].toDouble();
    const bool causal = context->saved_data["causal"].toBool();
    std::vector<Tensor> found;
    if (at::GradMode::is_enabled() || at::functorch::isBatchedTensor(gradients[0])) {
      found = differentiable_backward(gradients[0], query, key, value, mask, seed, p, causal, scale);
    } else {
      static const auto pass = operation("cpudist::attention_backward", attention_backward);
      const OptionalTensor given = mask.defined() ? OptionalTensor(mask) : std::nullopt;
      const auto [of_query, of_key, of_value] =
          pass.call(gradients[0], query, key, value, given, seed, saved[5], saved[6], p, causal, scale);
      found = {of_query, of_key, of_value};
    }
    found.resize(8);
    return found;
  }
};

// Returns whether the kernels support a call. All other calls go to torch's attention.
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

// Replaces torch's scaled_dot_product_attention while kKey is included; calls that do not fit go on to torch's.
static Tensor attention(c10::DispatchKeySet keys, const Tensor& query, const Tensor& key, const Tensor& value,
                        const OptionalTensor& mask, double p, bool causal, std::optional<double> scale, bool gqa) {
  const Tensor q = cast(query), k = cast(key), v = cast(value);
  const OptionalTensor m = mask ? OptionalTensor(cast(*mask)) : std::nullopt;
  if (!fits(q, k, v, m, p, causal, gqa)) {
    using Torchs = at::_ops::scaled_dot_product_attention;
    const c10::DispatchKeySet torchs(c10::DispatchKeySet::FULL_AFTER, kKey);
    return Torchs::redispatch(keys & torchs, query, key, value, mask, p, causal, scale, gqa);
  }
  const c10::impl::ExcludeDispatchKeyGuard torchs(kKey);
  const Tensor seed = p > 0 ? draw_seed() : at::empty({0}, at::kLong);
  return OnePass::apply(q, k, v, m, seed, p, causal, scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))));
}

TORCH_LIBRARY_FRAGMENT(cpudist, library) {
  library.def(
      "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor seed, float p, bool causal, "
      "float scale) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor seed, "
      "Tensor output, Tensor rows, float p, bool causal, float scale) -> (Tensor, Tensor, Tensor)");
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta}) {
    library.impl("attention_forward", torch::dispatch(key, attention_forward));
    library.impl("attention_backward", torch::dispatch(key, attention_backward));
  }
}
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) { library.impl("scaled_dot_product_attention", attention); }

}  // namespace cpudist
