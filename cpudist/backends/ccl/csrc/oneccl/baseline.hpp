// oneCCL without c10d, for `cpudist bench`: what the process group is measured against.
#pragma once

#include "communicator.hpp"

namespace cpudist::oneccl {

// Seconds of each of `repeats` float32 sums of `bytes` bytes, in pieces of `piece_bytes` one after the other, on a
// communicator of its own.
std::vector<double> allreduce_baseline(const Group& group, size_t bytes, int repeats, size_t piece_bytes);

}  // namespace cpudist::oneccl
