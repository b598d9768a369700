// Dropout and Bernoulli masks of CPU tensors, drawn by a counter: a seed gives the same mask on any number of threads
// and with any instruction set. Nothing of torch is included, so one library serves all versions.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// A mask: bit i depends on the seed and i alone.
struct Mask {
  uint64_t seed;
  uint32_t threshold;  // of 2^32: the probability of a 1
};

// Elements that are drawn together: four words from each of 16 counters. Element 16 k + i of a group is decided by word k
// of counter i.
constexpr size_t kCounters = 16;
constexpr size_t kGroup = 4 * kCounters;

namespace plain {

#define WIDTH 16
#define TARGET
#if defined(__x86_64__)
#define MULTIPLY(a, b) (Pairs) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#else
#define MULTIPLY(a, b) (((a) & 0xffffffff) * ((b) & 0xffffffff))
#endif
#include "dropout_body.hpp"
#undef MULTIPLY
#undef TARGET
#undef WIDTH

}  // namespace plain

#if defined(__x86_64__)

namespace avx2 {

#define WIDTH 32
#define TARGET __attribute__((target("avx2")))
#define MULTIPLY(a, b) (Pairs) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#include "dropout_body.hpp"
#undef MULTIPLY
#undef TARGET
#undef WIDTH

}  // namespace avx2

namespace avx512 {

#define WIDTH 64
#define TARGET __attribute__((target("avx512bw,avx512dq,prefer-vector-width=512")))
#define MULTIPLY(a, b) (Pairs) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#include "dropout_body.hpp"
#undef MULTIPLY
#undef TARGET
#undef WIDTH

}  // namespace avx512

#endif

// Calls run(from, to) for pieces of the elements, divided over the threads. These are torch's, where both use the same
// library for OpenMP.
template <typename Run>
void divide(size_t count, int threads, Run run) {
  constexpr size_t kPiece = 64 * kGroup;
  const size_t pieces = (count + kPiece - 1) / kPiece;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (size_t piece = 0; piece < pieces; ++piece) run(piece * kPiece, std::min(count, (piece + 1) * kPiece));
}

// Carries the operation out with this processor's widest vectors, of at most `widest` bytes.
template <typename Operation>
void carry_out(const Operation& operation, Mask mask, size_t count, int threads, int widest) {
#if defined(__x86_64__)
  if (widest >= 64 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return divide(count, threads, [&](size_t from, size_t to) { avx512::carry_out(operation, mask, from, to); });
  }
  if (widest >= 32 && __builtin_cpu_supports("avx2")) {
    return divide(count, threads, [&](size_t from, size_t to) { avx2::carry_out(operation, mask, from, to); });
  }
#endif
  divide(count, threads, [&](size_t from, size_t to) { plain::carry_out(operation, mask, from, to); });
}

// Operations on elements [at, at + count): `kept` is all ones for an element that is kept, otherwise 0. Inlined, so that
// they are compiled for the instruction set of their caller; ivdep: `in` may be `out`.
#define OPERATION __attribute__((always_inline)) void operator()(size_t at, const uint32_t* kept, size_t count) const

// Writes `one` where the mask has a 1, otherwise 0.
template <typename Bits>
struct Fill {
  Bits* out;
  Bits one;
  OPERATION {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[at + i] = kept[i] ? one : 0;
  }
};

// Multiplies by the scale or by 0, which keeps NaNs and signs as a product of tensors does.
struct Float32 {
  const float* in;
  float* out;
  float scale;
  OPERATION {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[at + i] = in[at + i] * (kept[i] ? scale : 0.0f);
  }
};

// bfloat16 is the upper half of a float32, rounded to nearest, ties to even.
struct BFloat16 {
  const uint16_t* in;
  uint16_t* out;
  float scale;
  OPERATION {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      const float product = std::bit_cast<float>(uint32_t{in[at + i]} << 16) * (kept[i] ? scale : 0.0f);
      const uint32_t bits = std::bit_cast<uint32_t>(product);
      out[at + i] = product == product ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0;
    }
  }
};

}  // namespace

// The functions that dropout.py calls; `widest` limits the vectors, for tests.

extern "C" void cpudist_bernoulli(void* out, int element_bytes, uint64_t one, size_t count, uint64_t seed,
                                  uint32_t threshold, int threads, int widest) {
  const auto fill = [&]<typename Bits>(Bits*) {
    carry_out(Fill<Bits>{static_cast<Bits*>(out), static_cast<Bits>(one)}, {seed, threshold}, count, threads, widest);
  };
  switch (element_bytes) {
    case 1: return fill(static_cast<uint8_t*>(nullptr));
    case 2: return fill(static_cast<uint16_t*>(nullptr));
    case 4: return fill(static_cast<uint32_t*>(nullptr));
    case 8: return fill(static_cast<uint64_t*>(nullptr));
  }
}

extern "C" void cpudist_dropout_float32(const void* in, void* out, float scale, size_t count, uint64_t seed,
                                        uint32_t threshold, int threads, int widest) {
  carry_out(Float32{static_cast<const float*>(in), static_cast<float*>(out), scale}, {seed, threshold}, count, threads,
            widest);
}

extern "C" void cpudist_dropout_bfloat16(const void* in, void* out, float scale, size_t count, uint64_t seed,
                                         uint32_t threshold, int threads, int widest) {
  carry_out(BFloat16{static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out), scale}, {seed, threshold}, count,
            threads, widest);
}
