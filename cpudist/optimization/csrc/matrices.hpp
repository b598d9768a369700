// Copies of the matrices of a head in the layouts that products need.
//
// A product takes a bfloat16 second factor with paired rows: element [k][n] is at [k / 2][n][k % 2], so pairs make
// words of 32 bits. If such words are transposed, plain rows give the transpose with paired rows, and paired rows give
// the plain transpose. The rows of a float32 factor are not paired: each element is a word.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "avx512.hpp"

namespace cpudist {

// Rounds up to what AMX's tiles and the vectors below need.
constexpr int64_t padded(int64_t count) { return (count + 31) / 32 * 32; }

// Memory that a head's computation divides into parts.
class Scratch {
 public:
  static constexpr int64_t kAlignment = 64;
  explicit Scratch(void* memory) : next_(static_cast<char*>(memory)) {}

  template <typename Element>
  Element* take(int64_t count) {
    auto* part = reinterpret_cast<Element*>(next_);
    next_ += (count * sizeof(Element) + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

 private:
  char* next_;
};

// A tensor [batch, heads, tokens, size] with any strides.
template <typename Element>
struct Strided {
  Element* data = nullptr;
  int64_t strides[4] = {};

  Strided() = default;
  explicit Strided(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    data = static_cast<Element*>(const_cast<void*>(tensor.const_data_ptr()));
    std::copy_n(tensor.strides().begin(), 4, strides);
  }
  Element* row(int64_t batch, int64_t head, int64_t token) const {
    return data + batch * strides[0] + head * strides[1] + token * strides[2];
  }
};

// Copies tokens of a head to rows, and pads rows and columns with zeros.
template <typename Element>
void gather(const Strided<Element>& from, int64_t batch, int64_t head, int64_t first, int64_t count, int64_t size,
            Element* to, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < count; ++r) {
    const Element* row = from.row(batch, head, first + r);
    Element* copy = to + r * width;
    if (from.strides[3] == 1) {
      std::memcpy(copy, row, size * sizeof(Element));
    } else {
      for (int64_t d = 0; d < size; ++d) copy[d] = row[d * from.strides[3]];
    }
    std::fill(copy + size, copy + width, Element(0));
  }
  std::fill(to + count * width, to + rows * width, Element(0));
}

// Pairs the rows of a bfloat16 matrix [rows][width]; copies a float32 matrix.
template <typename Element>
CPUDIST_AVX512 void pair_rows(const Element* from, int64_t rows, int64_t width, Element* to) {
  if constexpr (std::is_same_v<Element, float>) {
    std::memcpy(to, from, rows * width * sizeof(float));
  } else {
    for (int64_t r = 0; r < rows; r += 2) {
      for (int64_t j = 0; j < width; j += 16) {
        const __m512i low = words_of(from + r * width + j), high = words_of(from + (r + 1) * width + j);
        _mm512_storeu_si512(to + r * width + 2 * j, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    }
  }
}

// Transposes words [rows][columns].
inline void transpose(const void* from, int64_t rows, int64_t columns, void* to) {
  const auto* in = static_cast<const uint32_t*>(from);
  auto* out = static_cast<uint32_t*>(to);
  for (int64_t r = 0; r < rows; r += 16) {
    for (int64_t c = 0; c < columns; c += 16) transpose16(in + r * columns + c, columns, out + c * rows + r, rows);
  }
}

// Transposes each block of `block` rows of a matrix [rows][width] by itself, in words.
template <typename Element>
void transpose_blocks(const Element* from, int64_t rows, int64_t width, int64_t block, Element* to) {
  for (int64_t r = 0; r < rows; r += block) {
    transpose(from + r * width, std::min(block, rows - r), width * sizeof(Element) / 4, to + r * width);
  }
}

// Writes the plain transpose [width][rows] of a matrix [rows][width] to `to`.
template <typename Element>
void transpose_rows(const Element* from, int64_t rows, int64_t width, Element* paired, Element* to) {
  pair_rows(from, rows, width, paired);
  transpose(paired, rows * sizeof(Element) / 4, width, to);
}

// Writes sums, which are transposed in each block of rows, times `scale` as tokens of a head.
template <typename Element>
void store_transposed(const float* sums, int64_t rows, int64_t width, int64_t block, float scale, int64_t batch,
                      int64_t head, int64_t count, int64_t size, const Strided<Element>& to, float* scratch) {
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t many = std::min(block, rows - first);
    transpose(sums + first * width, width, many, scratch);
    for (int64_t r = 0; r < std::min(many, count - first); ++r) {
      store_row(to.row(batch, head, first + r), scratch + r * width, scale, size);
    }
  }
}

}  // namespace cpudist
