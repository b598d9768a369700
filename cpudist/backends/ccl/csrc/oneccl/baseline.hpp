// oneCCL without c10d, for `cpudist bench`: what the process group is measured against.
#pragma once

#include "communicator.hpp"

namespace cpudist::oneccl {

struct Baseline {
  size_t bytes;
  bool bfloat16;   // instead of float32
  size_t buffers;  // used in turn
  size_t repeats;
  size_t piece_bytes;  // a message goes in pieces, one after the other
};

// Seconds of each sum, on a communicator of its own.
std::vector<double> allreduce_baseline(const Group& group, const Baseline& what);

}  // namespace cpudist::oneccl
