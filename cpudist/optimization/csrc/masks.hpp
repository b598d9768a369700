// Products with dropout masks, drawn by a counter-based generator: a seed gives the same mask on all threads and CPUs.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include "avx512.hpp"
#endif

// Inlined into functions that are compiled for several instruction sets.
#define CPUDIST_INLINE __attribute__((always_inline)) inline
#if defined(__x86_64__)
#define CPUDIST_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CPUDIST_EACH_CPU
#endif

namespace cpudist {

// Number of elements that are drawn together: four words from each of 16 counters. Word k of counter i decides element
// 16 k + i of a group.
constexpr size_t kCounters = 16;
constexpr size_t kGroup = 4 * kCounters;

struct Mask {
  uint64_t seed;
  uint32_t threshold;  // an element is kept with the probability threshold / 2^32
  float scale;         // factor of a kept element
};

// Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) for all counters of a group. Inner
// loops are over counters, so that compilers use vectors.
CPUDIST_INLINE void philox(uint64_t seed, uint64_t group, uint32_t words[kGroup]) {
  uint32_t *c0 = words, *c1 = c0 + kCounters, *c2 = c1 + kCounters, *c3 = c2 + kCounters;
  const uint64_t first = group * kCounters;
  for (size_t i = 0; i < kCounters; ++i) c0[i] = first + i, c1[i] = first >> 32, c2[i] = c3[i] = 0;
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
    for (size_t i = 0; i < kCounters; ++i) {
      const uint64_t product0 = uint64_t{c0[i]} * 0xD2511F53, product1 = uint64_t{c2[i]} * 0xCD9E8D57;
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(product0);
    }
  }
}

#if defined(__x86_64__)
// The same in AVX-512; vector k has word k of all counters. A product ignores the upper halves of its factors, so even
// counters and odd counters stay in separate vectors with lanes of 64 bits.
CPUDIST_AVX512 inline void philox(uint64_t seed, uint64_t group, __m512i words[4]) {
  const __m512i factor0 = _mm512_set1_epi64(0xD2511F53), factor1 = _mm512_set1_epi64(0xCD9E8D57);
  const auto first = static_cast<int64_t>(group * kCounters);
  __m512i c[2][4];
  for (int odd = 0; odd < 2; ++odd) {
    c[odd][0] = _mm512_add_epi64(_mm512_set1_epi64(first + odd), _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0));
    c[odd][1] = _mm512_set1_epi64(first >> 32);
    c[odd][2] = c[odd][3] = _mm512_setzero_si512();
  }
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
    for (auto& [c0, c1, c2, c3] : c) {
      const __m512i product0 = _mm512_mul_epu32(c0, factor0), product1 = _mm512_mul_epu32(c2, factor1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1, _mm512_set1_epi64(key0), 0x96);  // xor
      c1 = product1;
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3, _mm512_set1_epi64(key1), 0x96);
      c3 = product0;
    }
  }
  for (int k = 0; k < 4; ++k) words[k] = _mm512_mask_blend_epi32(0xAAAA, c[0][k], _mm512_slli_epi64(c[1][k], 32));
}

// The elements of a group that are kept, a bit for each; kAll keeps all.
constexpr uint64_t kAll = ~uint64_t{0};
CPUDIST_AVX512 inline uint64_t draw(Mask mask, uint64_t group) {
  __m512i words[4];
  philox(mask.seed, group, words);
  uint64_t kept = 0;
  for (int k = 3; k >= 0; --k) {
    kept = kept << 16 | _mm512_cmplt_epu32_mask(words[k], _mm512_set1_epi32(static_cast<int>(mask.threshold)));
  }
  return kept;
}

template <typename Element>
CPUDIST_AVX512 void multiply_avx512(const Element* in, Element* out, Mask mask, size_t from, size_t to) {
  uint64_t kept = 0;
  for (size_t at = from; at < to; at += 16, kept >>= 16) {
    if (at % kGroup == 0) kept = draw(mask, at / kGroup);
    const __mmask16 lanes = to - at < 16 ? (1 << (to - at)) - 1 : 0xFFFF;
    const __m512 factor = _mm512_maskz_mov_ps(kept, _mm512_set1_ps(mask.scale));
    store(out + at, _mm512_mul_ps(load(in + at, lanes), factor), lanes);
  }
}
#endif

// Multiplies elements [from, to) by the scale or by 0, which keeps NaNs and signs as a product of tensors does.
template <typename Element>
CPUDIST_INLINE void multiply(const Element* in, Element* out, Mask mask, size_t from, size_t to) {
  for (size_t at = from; at < to; at += kGroup) {
    uint32_t words[kGroup];
    philox(mask.seed, at / kGroup, words);
    const size_t count = std::min(kGroup, to - at);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      out[at + i] = static_cast<float>(in[at + i]) * (words[i] < mask.threshold ? mask.scale : 0.0f);
    }
  }
}

CPUDIST_EACH_CPU void run(const float* in, float* out, Mask mask, size_t from, size_t to) {
  multiply(in, out, mask, from, to);
}
CPUDIST_EACH_CPU void run(const c10::BFloat16* in, c10::BFloat16* out, Mask mask, size_t from, size_t to) {
  multiply(in, out, mask, from, to);
}

// Multiplies all elements, divided among torch's threads.
template <typename Element>
void multiply(const Element* in, Element* out, Mask mask, size_t count) {
  const auto groups = static_cast<int64_t>((count + kGroup - 1) / kGroup);
  at::parallel_for(0, groups, at::internal::GRAIN_SIZE / kGroup, [&](int64_t from, int64_t to) {
    const size_t first = from * kGroup, end = std::min(count, to * kGroup);
#if defined(__x86_64__)
    if (has_avx512()) return multiply_avx512(in, out, mask, first, end);
#endif
    run(in, out, mask, first, end);
  });
}

}  // namespace cpudist
