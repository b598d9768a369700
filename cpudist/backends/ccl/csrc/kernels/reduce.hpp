// Reductions of several ranks' buffers, element by element, on one core.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "../transport.hpp"

namespace cpudist::kernels {

// Computes output[i] as the reduction of sources[0][i], sources[1][i], ... in this order, so the result does not depend
// on which rank computes it. An average divides the sum by `divisor`; other reductions ignore it. If `copy` is not
// null, it receives the same values. float16 and bfloat16 are computed in float32 and rounded once, to nearest even. A
// source may be the output itself; otherwise the buffers must not overlap.
using Reduce = void (*)(void* output, void* copy, const void* const* sources, int sources_count, int divisor,
                        size_t elements);

// The instruction sets that the reductions are compiled for, the best one last. All give the same bits.
enum class InstructionSet { kPlain, kAvx2, kAvx512 };

// The best instruction set of this machine.
InstructionSet best_instruction_set();

Reduce reduction(DataType type, Reduction reduction, InstructionSet set = best_instruction_set());

// The reduction of elements of `width` bytes.
struct Combination {
  Combination(DataType type, Reduction reduction) : kernel(kernels::reduction(type, reduction)), width(size_of(type)) {}

  // Reduces the `count` elements at place(r), for each rank r in the order of ranks. `copy` may be null.
  template <typename Place>
  void operator()(void* output, void* copy, size_t count, int ranks, Place place) const {
    std::array<const void*, 16> few;
    std::vector<const void*> many;
    const void** sources = few.data();
    if (static_cast<size_t>(ranks) > few.size()) {
      many.resize(static_cast<size_t>(ranks));
      sources = many.data();
    }
    for (int rank = 0; rank < ranks; ++rank) sources[rank] = place(rank);
    if (count > 0) kernel(output, copy, sources, ranks, ranks, count);
  }

  Reduce kernel;
  size_t width;
};

// Computes output[i] = input[i] / divisor; integers are rounded towards zero. The two may be the same memory.
inline void divide(const void* input, void* output, size_t count, DataType type, int divisor) {
  reduction(type, Reduction::kAverage)(output, nullptr, &input, 1, divisor, count);
}

// Computes to[i] += from[i].
inline void add(const float* from, float* to, size_t count) {
  const void* sources[] = {to, from};
  if (count > 0) reduction(DataType::kFloat32, Reduction::kSum)(to, nullptr, sources, 2, 1, count);
}

}  // namespace cpudist::kernels
