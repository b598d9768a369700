#include "reduce.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "wire.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

namespace cpudist::kernels {

// Vectors of 16 bytes, which every x86-64 and aarch64 processor has. float16 is converted by arithmetic on the bits.
namespace plain {

#define WIDTH 16
#define TARGET
typedef float FourFloats __attribute__((vector_size(16)));
typedef uint32_t FourWords __attribute__((vector_size(16)));
typedef uint16_t FourHalves __attribute__((vector_size(8)));

inline FourFloats load_half(const void* from) {
  FourHalves halves;
  std::memcpy(&halves, from, sizeof halves);
  const FourWords bits = __builtin_convertvector(halves, FourWords);
  const FourWords sign = (bits & 0x8000) << 16;
  const FourWords magnitude = bits & 0x7fff;
  const FourWords normal = (magnitude << 13) + (112u << 23);  // the exponent's bias: 127 instead of 15
  const FourWords special = normal + (112u << 23);            // infinities and NaNs have the highest exponent
  const FourWords quiet = special | (1u << 22);
  const auto subnormal = (FourWords)(__builtin_convertvector(magnitude, FourFloats) * 0x1p-24f);
  const FourWords finite = magnitude < 0x400 ? subnormal : normal;
  const FourWords rest = magnitude > 0x7c00 ? quiet : special;
  return (FourFloats)(sign | (magnitude < 0x7c00 ? finite : rest));
}

inline void store_half(void* to, FourFloats value) {
  const auto bits = (FourWords)value;
  const FourWords sign = (bits >> 16) & 0x8000;
  const FourWords magnitude = bits & 0x7fffffff;
  const FourWords rebiased = magnitude - (112u << 23);
  const FourWords normal = (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13;  // to nearest, ties to even
  // The last bit of 0.5 in float32 has the value of a float16's last subnormal bit, so the addition rounds to that bit.
  const FourWords half = magnitude * 0 + 0x3f000000;
  const FourWords subnormal = (FourWords)((FourFloats)magnitude + (FourFloats)half) - half;
  const FourWords infinity = magnitude * 0 + 0x7c00;
  const FourWords nan = infinity | 0x200 | ((magnitude >> 13) & 0x3ff);
  const FourWords finite = magnitude < 0x38800000 ? subnormal : normal;
  const FourWords rest = magnitude > 0x7f800000 ? nan : infinity;
  const FourHalves halves = __builtin_convertvector(sign | (magnitude < 0x477ff000 ? finite : rest), FourHalves);
  std::memcpy(to, &halves, sizeof halves);
}

#include "reduce_body.hpp"
#include "wire_body.hpp"
#undef TARGET
#undef WIDTH

}  // namespace plain

// The kernels of an instruction set.
struct Kernels {
  Reduce (*reduction)(DataType type, Reduction reduction);
  WireKernels (*wire)(Wire wire);
};

#if defined(__x86_64__)

namespace avx2 {

#define WIDTH 32
#define TARGET __attribute__((target("avx2,f16c")))
TARGET inline __m256 load_half(const void* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
TARGET inline void store_half(void* to, __m256 value) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}
#include "reduce_body.hpp"
#include "wire_body.hpp"
#undef TARGET
#undef WIDTH

}  // namespace avx2

namespace avx512 {

#define WIDTH 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")))
TARGET inline __m512 load_half(const void* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
TARGET inline void store_half(void* to, __m512 value) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT));
}
#include "reduce_body.hpp"
#include "wire_body.hpp"
#undef TARGET
#undef WIDTH

}  // namespace avx512

InstructionSet best_instruction_set() {
  static const InstructionSet best = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c")) {
      return InstructionSet::kAvx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return InstructionSet::kAvx2;
    return InstructionSet::kPlain;
  }();
  return best;
}

static Kernels kernels_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx512: return {avx512::find, avx512::find_wire};
    case InstructionSet::kAvx2: return {avx2::find, avx2::find_wire};
    case InstructionSet::kPlain: break;
  }
  return {plain::find, plain::find_wire};
}

#else

InstructionSet best_instruction_set() { return InstructionSet::kPlain; }

static Kernels kernels_of(InstructionSet) { return {plain::find, plain::find_wire}; }

#endif

Reduce reduction(DataType type, Reduction reduction, InstructionSet set) {
  return kernels_of(set).reduction(type, reduction);
}

WireKernels wire_kernels(Wire wire, InstructionSet set) { return kernels_of(set).wire(wire); }

}  // namespace cpudist::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
