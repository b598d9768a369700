// Adding up (or multiplying, comparing) what several ranks hold, element by element.
#pragma once

#include <cstddef>

#include "../transport.hpp"

namespace cpudist::shared_memory {

// output[i] = reduction over sources[0][i], sources[1][i], ... in this order, so the result does not depend on who
// computes it. `copy` receives the same where it is not null. float16 and bfloat16 are computed in float32 and rounded
// once, to nearest even. A source may be the output itself; otherwise nothing may overlap.
using Reduce = void (*)(void* output, void* copy, const void* const* sources, int sources_count, size_t elements);

// The instruction sets that it is compiled for, the best last. All of them give the same bits.
enum class InstructionSet { kPlain, kAvx2, kAvx512 };

// What this machine has.
InstructionSet best_instruction_set();

Reduce reduce_kernel(DataType type, Reduction reduction, InstructionSet set = best_instruction_set());

}  // namespace cpudist::shared_memory
