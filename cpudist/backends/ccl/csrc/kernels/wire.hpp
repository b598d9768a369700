// Conversions of float32 to the formats in which sums cross a network, on one core.
#pragma once

#include <cstddef>

#include "../transport.hpp"
#include "reduce.hpp"

namespace cpudist::kernels {

// Values of a kInt8 block, which share a scale. In other formats values are independent of each other.
constexpr size_t kWireBlock = 256;

struct WireKernels {
  // Converts `count` values of float32. If `lost` is not null, it receives the rounding error of each value, or 0 if
  // the error is not finite.
  void (*encode)(const float* from, void* to, float* lost, size_t count);
  void (*decode)(const void* from, float* to, size_t count);
  // Computes to[i] += the i-th decoded value.
  void (*add)(const void* from, float* to, size_t count);
};

// Bytes of `count` values. kBFloat16: 2 each, rounded to nearest even. kInt8: 1 each, and 4 for the scale in front of
// each block; the largest magnitude of a block becomes 127. A block with an infinity or NaN decodes to NaNs.
constexpr size_t wire_bytes(Wire wire, size_t count) {
  switch (wire) {
    case Wire::kBFloat16: return 2 * count;
    case Wire::kInt8: return count + (count + kWireBlock - 1) / kWireBlock * sizeof(float);
    case Wire::kFloat32: break;
  }
  return sizeof(float) * count;
}

// A rank's share of values that cross a network: its first value, its number of values, and their bytes on the wire.
struct WireShare {
  size_t first;
  size_t count;
  size_t bytes;
};

// Divides `count` values among ranks at the borders of blocks.
constexpr WireShare wire_share(Wire wire, size_t count, size_t rank, size_t ranks) {
  const size_t blocks = (count + kWireBlock - 1) / kWireBlock;
  const auto begin = [&](size_t r) { return std::min(blocks * r / ranks * kWireBlock, count); };
  const size_t own = begin(rank + 1) - begin(rank);
  return {begin(rank), own, wire_bytes(wire, own)};
}

// Sums of fewer bytes than this are not converted, because latency dominates.
constexpr size_t kShortestWire = size_t{64} << 10;

// Whether an allreduce crosses the network in the format.
constexpr bool converts(Wire wire, size_t count, DataType type, Reduction reduction) {
  const bool adds = reduction == Reduction::kSum || reduction == Reduction::kAverage;
  return wire != Wire::kFloat32 && type == DataType::kFloat32 && adds && count * sizeof(float) >= kShortestWire;
}

// Returns the kernels of a format other than kFloat32. All instruction sets give the same bits.
WireKernels wire_kernels(Wire wire, InstructionSet set = best_instruction_set());

}  // namespace cpudist::kernels
