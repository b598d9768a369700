// Every reduction from the definitions of its number formats, one element at a time: what results are compared with.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "transport.hpp"

namespace cpudist::testing {

template <typename Number>
Number read(const std::byte* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

inline double decode_half(DataType type, uint16_t bits) {
  if (type == DataType::kBFloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa > 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

inline double decode(DataType type, const std::byte* from) {
  if (type == DataType::kFloat32) return read<float>(from);
  if (type == DataType::kFloat64) return read<double>(from);
  return decode_half(type, read<uint16_t>(from));
}

// A float32 in a 16-bit format: the neighbour that is nearer, the even one where both are equally near.
inline uint16_t encode(DataType type, float value) {
  const uint16_t infinity = type == DataType::kFloat16 ? 0x7c00 : 0x7f80;
  if (std::isnan(value)) return infinity + 1;  // any NaN: compared as NaN
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  uint16_t low = 0;
  uint16_t high = infinity;
  const auto number = [&](uint16_t bits) {  // what infinity stands for in rounding: the next
                                            // number, were there one
    if (bits == infinity) return type == DataType::kFloat16 ? 65536.0 : std::ldexp(1.0, 128);
    return decode_half(type, bits);
  };
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (number(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - number(low);
  const double above = number(high) - magnitude;
  const bool up = above < below || (above == below && (high & 1) == 0);
  return sign | (up ? high : low);
}

template <typename Number>
Number apply(Reduction reduction, Number a, Number b) {
  switch (reduction) {
    case Reduction::kProduct: return static_cast<Number>(a * b);
    case Reduction::kMin: return a != a || a < b ? a : b;
    case Reduction::kMax: return a != a || a > b ? a : b;
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      if constexpr (std::is_integral_v<Number>) {
        return reduction == Reduction::kBitAnd ? a & b : reduction == Reduction::kBitOr ? a | b : a ^ b;
      }
      return a;
    default: return static_cast<Number>(a + b);
  }
}

// The result of one element from what each rank has there.
template <typename Number>
Number reduced(Reduction reduction, const std::vector<Number>& values) {
  Number total = values[0];
  for (size_t i = 1; i < values.size(); ++i) total = apply(reduction, total, values[i]);
  if (reduction == Reduction::kAverage) total = static_cast<Number>(total / static_cast<Number>(values.size()));
  return total;
}

template <typename Number>
void reduce_integers(Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to) {
  using Unsigned = std::make_unsigned_t<Number>;
  using Wide = std::conditional_t<std::is_signed_v<Number>, int64_t, uint64_t>;
  auto total = read<Number>(sources[0]);
  for (size_t i = 1; i < sources.size(); ++i) {
    const auto value = read<Number>(sources[i]);
    const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
    total = compares ? apply(reduction, total, value)
                     : static_cast<Number>(
                           apply<uint64_t>(reduction, static_cast<Unsigned>(total), static_cast<Unsigned>(value)));
  }
  if (reduction == Reduction::kAverage) total = static_cast<Number>(total / static_cast<Wide>(sources.size()));
  std::memcpy(to, &total, sizeof total);
}

inline void reduce_one(DataType type, Reduction reduction, const std::vector<const std::byte*>& sources,
                       std::byte* to) {
  switch (type) {
    case DataType::kInt8: return reduce_integers<int8_t>(reduction, sources, to);
    case DataType::kUint8: return reduce_integers<uint8_t>(reduction, sources, to);
    case DataType::kInt16: return reduce_integers<int16_t>(reduction, sources, to);
    case DataType::kInt32: return reduce_integers<int32_t>(reduction, sources, to);
    case DataType::kInt64: return reduce_integers<int64_t>(reduction, sources, to);
    case DataType::kFloat64: {
      std::vector<double> values;
      for (const auto* source : sources) values.push_back(decode(type, source));
      const double result = reduced(reduction, values);
      std::memcpy(to, &result, sizeof result);
      return;
    }
    default: {
      std::vector<float> values;
      for (const auto* source : sources) values.push_back(static_cast<float>(decode(type, source)));
      const float result = reduced(reduction, values);
      const uint16_t rounded = type == DataType::kFloat32 ? uint16_t{0} : encode(type, result);
      if (type == DataType::kFloat32) std::memcpy(to, &result, sizeof result);
      if (type != DataType::kFloat32) std::memcpy(to, &rounded, sizeof rounded);
    }
  }
}

// The same bits, or NaNs both.
inline bool same(DataType type, const std::vector<std::byte>& found, const std::vector<std::byte>& expected) {
  if (found == expected) return true;
  if (is_integer(type) || found.size() != expected.size()) return false;
  for (size_t at = 0; at < found.size(); at += size_of(type)) {
    if (std::memcmp(&found[at], &expected[at], size_of(type)) == 0) continue;
    if (!std::isnan(decode(type, &found[at])) || !std::isnan(decode(type, &expected[at]))) return false;
  }
  return true;
}

}  // namespace cpudist::testing
