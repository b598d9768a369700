// Attention of one head in one pass over blocks of scores, which stay in the second-level cache. Products use torch's
// brgemm, which oneDNN implements in AMX or AVX512_BF16 instructions; the rest is AVX-512.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "masks.hpp"
#include "matrices.hpp"

namespace cpudist {

constexpr int64_t kQueries = 64;  // most rows of a block of scores
constexpr int64_t kKeys = 512;    // most columns of a block of scores
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What all heads of a call have in common.
struct Attention {
  int64_t heads, key_heads, queries, keys, size;
  float scale;
  bool causal, drops;
  Mask dropout;
  Strided<float> bias;  // added to scores, [batch, heads, queries, keys]; its data is null where there is none
  int64_t used = keys;  // number of leading keys that the mask leaves; all later ones are padding

  int64_t width() const { return padded(size); }
  // Number of keys that the queries [query, query + count) see.
  int64_t seen(int64_t query, int64_t count) const { return causal ? std::min(used, query + count) : used; }
  int64_t row(int64_t batch, int64_t head, int64_t query) const { return (batch * heads + head) * queries + query; }
  // Mask groups of a query: masks of all queries are drawn as if they were one tensor (masks.hpp).
  int64_t groups() const { return (keys + kGroup - 1) / kGroup; }
};

// c [m][n] = a [m][k] * b [k][n], added to c if `add`. The rows of a bfloat16 b are paired (matrices.hpp).
template <typename Element>
void product(int64_t m, int64_t n, int64_t k, const Element* a, const Element* b, int64_t ldb, float* c, int64_t ldc,
             bool add) {
  constexpr bool kPairs = std::is_same_v<Element, at::BFloat16>;
  // Long sums of float32 products lose precision, so they are added in parts.
  const int64_t most = kPairs ? k : 128;
  for (int64_t at = 0; at < k; at += most)
    at::native::cpublas::brgemm(m, n, std::min(most, k - at), k, ldb, ldc, add || at, a + at, b + at * ldb, c, kPairs);
}

// Turns a row of products into scores: applies the scale and the mask, and sets the scores of keys after the last one
// that the query sees to -infinity. Returns the row's maximum.
CPUDIST_AVX512 inline float finish_scores(const Attention& call, float* row, int64_t batch, int64_t head, int64_t query,
                                          int64_t key, int64_t count) {
  const int64_t seen = std::clamp<int64_t>(call.seen(query, 1) - key, 0, count);
  for (int64_t j = 0; j < seen; ++j) row[j] *= call.scale;
  std::fill(row + seen, row + count, -kInfinity);
  if (call.bias.data) {
    const float* bias = call.bias.row(batch, head, query) + key;
    for (int64_t j = 0; j < seen; ++j) row[j] += bias[j];
  }
  __m512 most = _mm512_set1_ps(-kInfinity);
  for (int64_t j = 0; j < count; j += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(row + j));
  return _mm512_reduce_max_ps(most);
}

// exp(x) with Cephes' coefficients, relative error 1e-7. Results below 2^-126 are 0; a NaN gives a NaN.
CPUDIST_AVX512 inline __m512 exponential(__m512 x) {
  const __m512 z = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);  // ln 2 in two parts; this product is exact
  part = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), part);
  __m512 power = _mm512_set1_ps(1.9875691500e-4f);
  for (const float factor :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f, 1.0f, 1.0f}) {
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(factor));
  }
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(z, _mm512_set1_ps(-126), _CMP_NLT_UQ), power, whole);
}

// Writes exp(score - maximum), or 0 if dropped, and returns the sum of all, including the dropped ones.
template <typename Element>
CPUDIST_AVX512 inline float exponentials(const Attention& call, const float* row, float maximum, uint64_t group,
                                         Element* to, int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < count; ++group) {
    uint64_t kept = call.drops ? draw(call.dropout, group) : kAll;
    for (int i = 0; i < 4 && j < count; ++i, j += 16, kept >>= 16) {
      const __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(row + j), _mm512_set1_ps(maximum)));
      sum = _mm512_add_ps(sum, e);
      store(to + j, _mm512_maskz_mov_ps(kept, e));
    }
  }
  return _mm512_reduce_add_ps(sum);
}

// A row's maximum score, and 1 / (sum of exp(score - maximum)), which is 0 if the query sees no key.
struct Row {
  float maximum, inverse;
};

// The tensors of a call, [batch, heads, tokens, size]. of_key and of_value have one gradient for each query's head.
template <typename Element>
struct Operands {
  Strided<Element> query, key, value, output, gradient, of_query, of_key, of_value;
  Row* rows;  // [batch, heads, queries]
};

// Bytes that a pass over a head needs at most.
inline int64_t scratch_size(const Attention& call) {
  return sizeof(float) * ((8 * padded(call.keys) + 8 * kQueries + kKeys) * call.width() + 6 * kQueries * kKeys);
}

template <typename Element>
CPUDIST_AVX512 void forward(const Attention& call, const Operands<Element>& of, int64_t batch, int64_t head,
                            Scratch memory) {
  const int64_t width = call.width(), keys = padded(call.used), key_head = head * call.key_heads / call.heads;
  auto* gathered = memory.take<Element>(keys * width);
  auto* transposed_keys = memory.take<Element>(keys * width);  // each block of keys is a matrix of its own
  auto* values = memory.take<Element>(keys * width);
  auto* queries = memory.take<Element>(kQueries * width);
  auto* weights = memory.take<Element>(kQueries * kKeys);
  auto* scores = memory.take<float>(kQueries * kKeys);
  auto* sums = memory.take<float>(kQueries * width);
  gather(of.key, batch, key_head, 0, call.used, call.size, gathered, keys, width);
  transpose_blocks(gathered, keys, width, kKeys, transposed_keys);
  gather(of.value, batch, key_head, 0, call.used, call.size, gathered, keys, width);
  pair_rows(gathered, keys, width, values);
  const float up = call.drops ? call.dropout.scale : 1;
  for (int64_t first = 0; first < call.queries; first += kQueries) {
    const int64_t count = std::min(kQueries, call.queries - first), m = padded(count);
    gather(of.query, batch, head, first, count, call.size, queries, m, width);
    Row found[kQueries];  // here `inverse` is the sum itself
    std::fill(found, found + count, Row{-kInfinity, 0});
    const int64_t seen = padded(call.seen(first, count));
    for (int64_t at = 0; at < seen; at += kKeys) {
      const int64_t n = std::min(kKeys, seen - at);
      product(m, n, width, queries, transposed_keys + at * width, std::min(kKeys, keys - at), scores, kKeys, false);
      for (int64_t r = 0; r < count; ++r) {
        float* row = scores + r * kKeys;
        const float most = std::max(found[r].maximum, finish_scores(call, row, batch, head, first + r, at, n));
        const float base = most == -kInfinity ? 0 : most;
        const float earlier = at ? std::exp(found[r].maximum - base) : 0;
        const uint64_t group = call.row(batch, head, first + r) * call.groups() + at / kGroup;
        found[r] = {most, earlier * found[r].inverse + exponentials(call, row, base, group, weights + r * n, n)};
        for (int64_t d = 0; at && d < width; ++d) sums[r * width + d] *= earlier;
      }
      std::fill(weights + count * n, weights + m * n, Element(0));
      product(m, width, n, weights, values + at * width, width, sums, width, at > 0);
    }
    for (int64_t r = 0; r < count; ++r) {
      Row& row = of.rows[call.row(batch, head, first + r)];
      row = {found[r].maximum == -kInfinity ? 0 : found[r].maximum, found[r].inverse == 0 ? 0 : 1 / found[r].inverse};
      store_row(of.output.row(batch, head, first + r), sums + r * width, row.inverse * up, call.size);
    }
  }
}

// Computes, for two rows of scores, operands of the backward pass: the probabilities after dropout, and the gradients of
// the scores. `products`: the output gradients times the values.
template <typename Element>
CPUDIST_AVX512 inline void differentiate(const Attention& call, uint64_t group, uint64_t next, const float* scores,
                                         const float* products, const Row* rows, const float* delta, int64_t n,
                                         Element* kept_pairs, Element* gradient, Element* gradient_pairs) {
  const __m512 up = _mm512_set1_ps(call.drops ? call.dropout.scale : 1);
  for (int64_t j = 0; j < n; ++group, ++next) {
    uint64_t drawn[2] = {kAll, kAll};
    if (call.drops) drawn[0] = draw(call.dropout, group), drawn[1] = draw(call.dropout, next);
    for (int i = 0; i < 4 && j < n; ++i, j += 16) {
      __m512 kept[2], change[2];
      for (int r = 0; r < 2; ++r) {
        const __m512 score = _mm512_sub_ps(_mm512_loadu_ps(scores + r * kKeys + j), _mm512_set1_ps(rows[r].maximum));
        const __m512 p = _mm512_mul_ps(exponential(score), _mm512_set1_ps(rows[r].inverse));
        kept[r] = _mm512_maskz_mul_ps(drawn[r], p, up);
        const __m512 of = _mm512_maskz_mul_ps(drawn[r], _mm512_loadu_ps(products + r * kKeys + j), up);
        drawn[r] >>= 16;
        change[r] = _mm512_mul_ps(p, _mm512_sub_ps(of, _mm512_set1_ps(delta[r])));
        store(gradient + r * n + j, change[r]);
      }
      store_pair(kept_pairs, n, j, kept);
      store_pair(gradient_pairs, n, j, change);
    }
  }
}

template <typename Element>
CPUDIST_AVX512 void backward(const Attention& call, const Operands<Element>& of, int64_t batch, int64_t head,
                             Scratch memory) {
  const int64_t width = call.width(), keys = padded(call.used), key_head = head * call.key_heads / call.heads;
  auto* gathered = memory.take<Element>(std::max(keys, kQueries) * width);
  auto* transposed_keys = memory.take<Element>(keys * width);
  auto* paired_keys = memory.take<Element>(keys * width);
  auto* transposed_values = memory.take<Element>(keys * width);
  auto* key_sums = memory.take<float>(keys * width);  // each block of keys is a transposed matrix of its own
  auto* value_sums = memory.take<float>(keys * width);
  gather(of.value, batch, key_head, 0, call.used, call.size, gathered, keys, width);
  transpose_blocks(gathered, keys, width, kKeys, transposed_values);
  gather(of.key, batch, key_head, 0, call.used, call.size, gathered, keys, width);
  transpose_blocks(gathered, keys, width, kKeys, transposed_keys);
  pair_rows(gathered, keys, width, paired_keys);
  std::fill(key_sums, key_sums + keys * width, 0.0f);
  std::fill(value_sums, value_sums + keys * width, 0.0f);

  auto* queries = memory.take<Element>(kQueries * width);
  auto* gradients = memory.take<Element>(kQueries * width);
  auto* transposed_queries = memory.take<Element>(kQueries * width);
  auto* transposed_gradients = memory.take<Element>(kQueries * width);
  auto* outputs = memory.take<Element>(kQueries * width);
  auto* kept = memory.take<Element>(kQueries * kKeys);
  auto* changes = memory.take<Element>(kQueries * kKeys);
  auto* paired_changes = memory.take<Element>(kQueries * kKeys);
  auto* scores = memory.take<float>(kQueries * kKeys);
  auto* products = memory.take<float>(kQueries * kKeys);
  auto* query_sums = memory.take<float>(kQueries * width);
  auto* tokens = memory.take<float>(kKeys * width);
  for (int64_t first = 0; first < call.queries; first += kQueries) {
    const int64_t count = std::min(kQueries, call.queries - first), m = padded(count);
    gather(of.query, batch, head, first, count, call.size, queries, m, width);
    gather(of.gradient, batch, head, first, count, call.size, gradients, m, width);
    gather(of.output, batch, head, first, count, call.size, outputs, m, width);
    transpose_rows(queries, m, width, gathered, transposed_queries);
    transpose_rows(gradients, m, width, gathered, transposed_gradients);
    float delta[kQueries];
    Row found[kQueries] = {};  // padding rows add nothing, because their inverse is 0
    std::copy_n(of.rows + call.row(batch, head, first), count, found);
    for (int64_t r = 0; r < m; ++r) delta[r] = dot(gradients + r * width, outputs + r * width, width);
    const int64_t seen = padded(call.seen(first, count));
    for (int64_t at = 0; at < seen; at += kKeys) {
      const int64_t n = std::min(kKeys, seen - at), block = std::min(kKeys, keys - at), offset = at * width;
      product(m, n, width, queries, transposed_keys + offset, block, scores, kKeys, false);
      product(m, n, width, gradients, transposed_values + offset, block, products, kKeys, false);
      for (int64_t r = 0; r < m; r += 2) {
        for (int64_t i = r; i < r + 2; ++i) {
          finish_scores(call, scores + i * kKeys, batch, head, std::min(first + i, call.queries - 1), at, n);
        }
        const uint64_t group = call.row(batch, head, first + r) * call.groups() + at / kGroup;
        differentiate(call, group, group + call.groups(), scores + r * kKeys, products + r * kKeys, found + r,
                      delta + r, n, kept + r * n, changes + r * n, paired_changes + r * n);
      }
      product(width, n, m, transposed_gradients, kept, n, value_sums + offset, block, true);
      product(width, n, m, transposed_queries, paired_changes, n, key_sums + offset, block, true);
      product(m, width, n, changes, paired_keys + offset, width, query_sums, width, at > 0);
    }
    for (int64_t r = 0; r < count; ++r) {
      store_row(of.of_query.row(batch, head, first + r), query_sums + r * width, call.scale, call.size);
    }
  }
  store_transposed(value_sums, keys, width, kKeys, 1, batch, head, call.used, call.size, of.of_value, tokens);
  store_transposed(key_sums, keys, width, kKeys, call.scale, batch, head, call.used, call.size, of.of_key, tokens);
}

}  // namespace cpudist
