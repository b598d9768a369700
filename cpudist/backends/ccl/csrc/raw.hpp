// oneCCL without c10d, for `cpudist bench`: what the process group is measured against.
#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace cpudist {

// Seconds of each of `repeats` float32 sums of `bytes` bytes, in pieces of `piece_bytes` one after the other, on a
// communicator of its own.
std::vector<double> raw_allreduce(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, size_t bytes,
                                  int repeats, size_t piece_bytes);

}  // namespace cpudist
