// Linear layers whose backward pass leaves out tokens without a gradient, and copies the transposed factor of the
// weight's gradient: oneDNN's product is twice as fast on AMX with a contiguous factor (benchmarks/weight_gradient.py).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "dropout.hpp"
#if defined(__x86_64__)
#include "matrices.hpp"
#endif

namespace cpudist {

constexpr int64_t kBlock = 32;

#if defined(__x86_64__)
// Transposes a block of at most 32 x 32 elements.
CPUDIST_AVX512 static void transpose_block(const at::BFloat16* from, int64_t from_width, int64_t rows, int64_t columns,
                                           at::BFloat16* to, int64_t to_width) {
  alignas(64) at::BFloat16 block[kBlock * kBlock] = {}, paired[kBlock * kBlock];
  for (int64_t r = 0; r < rows; ++r) std::memcpy(block + r * kBlock, from + r * from_width, columns * sizeof(*from));
  transpose_rows(block, kBlock, kBlock, paired, block);
  for (int64_t c = 0; c < columns; ++c) std::memcpy(to + c * to_width, block + c * kBlock, rows * sizeof(*to));
}
#endif

// Returns a contiguous transpose of a matrix.
static Tensor transposed(const Tensor& matrix) {
#if defined(__x86_64__)
  if (has_avx512() && matrix.scalar_type() == at::kBFloat16 && matrix.is_contiguous()) {
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    Tensor out = at::empty({columns, rows}, matrix.options());
    const auto* from = matrix.const_data_ptr<at::BFloat16>();
    auto* to = out.mutable_data_ptr<at::BFloat16>();
    at::parallel_for(0, (columns + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin * kBlock; c < std::min(columns, end * kBlock); c += kBlock) {
        for (int64_t r = 0; r < rows; r += kBlock) {
          transpose_block(from + r * columns + c, columns, std::min(kBlock, rows - r), std::min(kBlock, columns - c),
                          to + c * rows + r, rows);
        }
      }
    });
    return out;
  }
#endif
  return matrix.t().contiguous();
}

// Returns whether all numbers of a row are 0 or -0; `row` has their bits as words.
template <typename Word>
static bool is_zero(const void* row, int64_t count) {
  const auto* words = static_cast<const Word*>(row);
  for (int64_t at = 0; at < count; at += 64) {
    const Word bits = std::reduce(words + at, words + std::min(count, at + 64), Word(0), std::bit_or<Word>());
    if (static_cast<Word>(bits << 1)) return false;
  }
  return true;
}

// Returns the indices of rows that are not all zeros.
static Tensor used_rows(const Tensor& matrix) {
  const int64_t count = matrix.size(0), columns = matrix.size(1), bytes = matrix.element_size();
  const auto* data = static_cast<const char*>(matrix.const_data_ptr());
  const auto is_zero_row = bytes == 2 ? is_zero<uint16_t> : bytes == 4 ? is_zero<uint32_t> : is_zero<uint64_t>;
  Tensor used = at::empty({count}, at::kBool);
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      used.mutable_data_ptr<bool>()[r] = !is_zero_row(data + r * columns * bytes, columns);
    }
  });
  return used.nonzero().squeeze(1);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const OptionalTensor& bias, bool turned, bool copies) {
    context->save_for_backward({weight.requires_grad() ? input : Tensor(), input.requires_grad() ? weight : Tensor()});
    context->saved_data["turned"] = turned;
    context->saved_data["copies"] = copies;
    context->saved_data["biased"] = bias.has_value();
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::linear(input, weight, bias);
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, std::vector<Tensor> gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t outputs = gradients[0].size(-1);
    // Only torch's operators are themselves differentiable and work in vmap.
    const bool torchs = at::GradMode::is_enabled() || at::functorch::isBatchedTensor(gradients[0]);
    Tensor gradient = gradients[0].reshape({-1, outputs}), input = saved[0], rows, of_input, of_weight, of_bias;
    if (input.defined()) input = input.reshape({-1, input.size(-1)});
    const int64_t tokens = gradient.size(0);
    if (!torchs) {
      gradient = gradient.contiguous();
      rows = used_rows(gradient);
      if (2 * rows.numel() < tokens) {
        gradient = gradient.index_select(0, rows);
        if (input.defined()) input = input.index_select(0, rows);
      } else {
        rows = Tensor();
      }
    }
    if (context->needs_input_grad(0)) {
      of_input = gradient.mm(saved[1]);
      auto shape = gradients[0].sizes().vec();
      shape.back() = saved[1].size(1);
      if (rows.defined())
        of_input = at::zeros({tokens, shape.back()}, of_input.options()).index_copy_(0, rows, of_input);
      of_input = of_input.reshape(shape);
    }
    if (context->needs_input_grad(1)) {
      const auto first = [&](const Tensor& factor) {
        return !torchs && context->saved_data["copies"].toBool() ? transposed(factor) : factor.t();
      };
      // The gradient has the layout of the parameter.
      const bool turned = context->saved_data["turned"].toBool();
      of_weight = turned ? first(input).mm(gradient).t() : first(gradient).mm(input);
    }
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(2)) of_bias = gradient.sum(0);
    return {of_input, of_weight, of_bias, {}, {}};
  }
};

// A linear layer. The weight is [outputs, inputs], or [inputs, outputs] if `turned`, as in Hugging Face's Conv1D.
// `copies`: copy the transposed factor of the weight's gradient.
static Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, bool turned, bool copies) {
  const Tensor x = cast(input), w = turned ? cast(weight).t() : cast(weight);
  const OptionalTensor b = bias ? OptionalTensor(cast(*bias)) : std::nullopt;
  bool ours = at::GradMode::is_enabled() && (w.requires_grad() || x.requires_grad()) && x.dim() > 1 && x.numel();
  for (const Tensor& each : {x, w, b.value_or(w)})
    ours = ours && each.scalar_type() == x.scalar_type() && is_plain(each);
  return ours ? Linear::apply(x, w, b, turned, copies) : at::linear(x, w, b);
}

TORCH_LIBRARY_FRAGMENT(cpudist, library) {
  library.def("linear(Tensor input, Tensor weight, Tensor? bias, bool turned, bool copies) -> Tensor", linear);
  library.def("transposed(Tensor matrix) -> Tensor", transposed);
}

}  // namespace cpudist
