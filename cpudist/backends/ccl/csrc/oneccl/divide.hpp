// Averages: oneCCL sums, we divide.
#pragma once

#include "../transport.hpp"

namespace cpudist::oneccl {

// output[i] = input[i] / divisor, integers towards zero. The two may be the same memory.
void divide(const void* input, void* output, size_t count, DataType type, int divisor);

}  // namespace cpudist::oneccl
