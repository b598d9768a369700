#include "divide.hpp"

#include <bit>
#include <type_traits>

namespace cpudist::oneccl {

namespace {

struct Float16 {
  uint16_t bits;

  operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // The exponent moves from a bias of 15 to one of 127, and subnormal numbers become normal ones, in one product.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
  }

  static Float16 from(float value) {
    const auto whole = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>(whole >> 16 & 0x8000u);
    const uint32_t magnitude = whole & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to more than 65504
    if (magnitude < 0x38800000u) {  // subnormal: the sum has its last bit where float16 has its
      const auto sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
      return {static_cast<uint16_t>(sign | (sum - std::bit_cast<uint32_t>(0.5f)))};
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);  // to nearest, ties to even
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
  }
};

struct BFloat16 {
  uint16_t bits;

  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  static BFloat16 from(float value) {
    const auto whole = std::bit_cast<uint32_t>(value);
    if ((whole & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(whole >> 16 | 0x40u)};
    return {static_cast<uint16_t>((whole + 0x7fffu + (whole >> 16 & 1u)) >> 16)};
  }
};

template <typename T>
void divide_each(const void* input, void* output, size_t count, int divisor) {
  const auto* from = static_cast<const T*>(input);
  auto* to = static_cast<T*>(output);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      to[i] = T::from(static_cast<float>(from[i]) / static_cast<float>(divisor));
    } else if constexpr (std::is_floating_point_v<T>) {
      to[i] = from[i] / static_cast<T>(divisor);
    } else {
      to[i] = static_cast<T>(from[i] / int64_t{divisor});  // more than 127 ranks are no int8
    }
  }
}

}  // namespace

void divide(const void* input, void* output, size_t count, DataType type, int divisor) {
  switch (type) {
    case DataType::kInt8: return divide_each<int8_t>(input, output, count, divisor);
    case DataType::kUint8: return divide_each<uint8_t>(input, output, count, divisor);
    case DataType::kInt16: return divide_each<int16_t>(input, output, count, divisor);
    case DataType::kInt32: return divide_each<int32_t>(input, output, count, divisor);
    case DataType::kInt64: return divide_each<int64_t>(input, output, count, divisor);
    case DataType::kFloat16: return divide_each<Float16>(input, output, count, divisor);
    case DataType::kBFloat16: return divide_each<BFloat16>(input, output, count, divisor);
    case DataType::kFloat32: return divide_each<float>(input, output, count, divisor);
    case DataType::kFloat64: return divide_each<double>(input, output, count, divisor);
  }
}

}  // namespace cpudist::oneccl
