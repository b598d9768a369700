// Vectors of 16 floats or words. The functions are called only where the CPU has AVX-512 with bfloat16.
#pragma once

#include <c10/util/BFloat16.h>
#include <immintrin.h>

#include <cstdint>

#define CPUDIST_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace cpudist {

inline bool has_avx512() {
  static const bool found = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return found;
}

CPUDIST_AVX512 inline __m512i words_of(const at::BFloat16* from, __mmask16 lanes = 0xFFFF) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
}

CPUDIST_AVX512 inline __m512 load(const float* from, __mmask16 lanes = 0xFFFF) {
  return _mm512_maskz_loadu_ps(lanes, from);
}
CPUDIST_AVX512 inline __m512 load(const at::BFloat16* from, __mmask16 lanes = 0xFFFF) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(words_of(from, lanes), 16));
}

CPUDIST_AVX512 inline void store(float* to, __m512 values, __mmask16 lanes = 0xFFFF) {
  _mm512_mask_storeu_ps(to, lanes, values);
}
CPUDIST_AVX512 inline void store(at::BFloat16* to, __m512 values, __mmask16 lanes = 0xFFFF) {
  _mm256_mask_storeu_epi16(to, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

// Writes columns [column, column + 16) of two rows of `width`, interleaved if they are bfloat16.
CPUDIST_AVX512 inline void store_pair(float* rows, int64_t width, int64_t column, const __m512 values[2]) {
  for (int r = 0; r < 2; ++r) _mm512_storeu_ps(rows + r * width + column, values[r]);
}
CPUDIST_AVX512 inline void store_pair(at::BFloat16* rows, int64_t, int64_t column, const __m512 values[2]) {
  const auto low = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values[0])));
  const auto high = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values[1])));
  _mm512_storeu_si512(rows + 2 * column, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

// Writes values times `scale`.
template <typename Element>
CPUDIST_AVX512 inline void store_row(Element* to, const float* values, float scale, int64_t count) {
  for (int64_t d = 0; d < count; d += 16) {
    const __mmask16 lanes = count - d < 16 ? (1 << (count - d)) - 1 : 0xFFFF;
    store(to + d, _mm512_mul_ps(load(values + d, lanes), _mm512_set1_ps(scale)), lanes);
  }
}

template <typename Element>
CPUDIST_AVX512 inline float dot(const Element* one, const Element* other, int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t d = 0; d < count; d += 16) sum = _mm512_fmadd_ps(load(one + d), load(other + d), sum);
  return _mm512_reduce_add_ps(sum);
}

// Transposes 16 x 16 words in four rounds, which swap blocks of 1, 2, 4 and 8 words across the diagonal.
CPUDIST_AVX512 inline void transpose16(const uint32_t* from, int64_t from_width, uint32_t* to, int64_t to_width) {
  __m512i rows[16];
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int r = 0; r < 16; ++r) rows[r] = _mm512_loadu_si512(from + r * from_width);
#pragma GCC unroll 4
  for (int step = 1; step < 16; step *= 2) {
    const __mmask16 upper = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(step));
    const __m512i to_upper = _mm512_mask_add_epi32(lane, upper, lane, _mm512_set1_epi32(16 - step));
    const __m512i to_lower =
        _mm512_add_epi32(lane, _mm512_mask_blend_epi32(upper, _mm512_set1_epi32(step), _mm512_set1_epi32(16)));
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      if (r & step) continue;
      const __m512i one = rows[r], other = rows[r + step];
      rows[r] = _mm512_permutex2var_epi32(one, to_upper, other);
      rows[r + step] = _mm512_permutex2var_epi32(one, to_lower, other);
    }
  }
  for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * to_width, rows[r]);
}

}  // namespace cpudist
