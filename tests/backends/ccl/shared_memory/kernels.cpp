// Every reduction of every type, and every conversion for a network, on every instruction set that this machine has,
// against the reference.
#include <cmath>
#include <cstdio>
#include <random>

#include "kernels/reduce.hpp"
#include "kernels/wire.hpp"
#include "ranks.hpp"
#include "reference.hpp"

using namespace cpudist;
using namespace cpudist::testing;
using kernels::InstructionSet;

namespace {

int failures = 0;

void check(DataType type, Reduction reduction, const std::vector<std::vector<std::byte>>& inputs, size_t shift) {
  const size_t width = size_of(type);
  const size_t count = inputs[0].size() / width - shift;
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(input.data() + shift * width);
  std::vector<std::byte> expected(count * width);
  for (size_t at = 0; at < expected.size(); at += width) {
    std::vector<const std::byte*> one;
    for (const auto* source : sources) one.push_back(source + at);
    reduce_one(type, reduction, one, &expected[at]);
  }
  std::vector<std::byte> first;
  for (int set = 0; set <= static_cast<int>(kernels::best_instruction_set()); ++set) {
    // One element more on either side, which must stay as it is.
    std::vector<std::byte> output((count + 2) * width, std::byte{0x5a});
    auto copy = output;
    const std::vector<const void*> pointers(sources.begin(), sources.end());
    kernels::reduction(type, reduction, static_cast<InstructionSet>(set))(
        output.data() + width, copy.data() + width, pointers.data(), static_cast<int>(inputs.size()),
        static_cast<int>(inputs.size()), count);
    const std::vector<std::byte> found(output.begin() + static_cast<long>(width),
                                       output.end() - static_cast<long>(width));
    bool good = same(type, found, expected) && copy == output;
    for (size_t i = 0; i < width; ++i)
      good = good && output[i] == std::byte{0x5a} && output.end()[-1 - static_cast<long>(i)] == std::byte{0x5a};
    if (first.empty()) first = found;
    good = good && found == first;  // NaNs too: bit by bit what the other
                                    // instruction sets make of them
    if (good) continue;
    ++failures;
    std::fprintf(stderr,
                 "type %d, reduction %d, %zu ranks, %zu elements: wrong with "
                 "instruction set %d\n",
                 static_cast<int>(type), static_cast<int>(reduction), inputs.size(), count, set);
  }
}

// The largest error of a value: half of the last of bfloat16's 8 bits, or of its smallest number; half of one of the 127
// steps of a block.
float allowed(Wire wire, const std::vector<float>& values, size_t at) {
  if (wire == Wire::kBFloat16) return std::fabs(values[at]) * 0x1p-8f + 0x1p-134f;
  const size_t begin = at / kernels::kWireBlock * kernels::kWireBlock;
  float most = 0;
  for (size_t i = begin; i < std::min(begin + kernels::kWireBlock, values.size()); ++i) {
    most = std::max(most, std::fabs(values[i]));
  }
  return most < 0x1p-100f ? most : most / 127 * 0.5001f;
}

void check_wire(Wire wire, const std::vector<float>& values) {
  const size_t count = values.size();
  std::vector<std::byte> first;
  for (int set = 0; set <= static_cast<int>(kernels::best_instruction_set()); ++set) {
    const auto found = kernels::wire_kernels(wire, static_cast<InstructionSet>(set));
    const size_t bytes = kernels::wire_bytes(wire, count);
    std::vector<std::byte> encoded(bytes + 1, std::byte{0x5a});
    std::vector<float> lost(count + 1, 77), decoded(count + 1, 77), added(count + 1, 1);
    found.encode(values.data(), encoded.data(), lost.data(), count);
    found.decode(encoded.data(), decoded.data(), count);
    found.add(encoded.data(), added.data(), count);
    bool good = encoded[bytes] == std::byte{0x5a} && lost[count] == 77 && decoded[count] == 77 && added[count] == 1;
    for (size_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) {
        good = good && !std::isfinite(decoded[i]) && lost[i] == 0;
      } else if (std::isfinite(decoded[i])) {
        good = good && std::fabs(values[i] - decoded[i]) <= allowed(wire, values, i) &&
               lost[i] == values[i] - decoded[i] && added[i] == 1 + decoded[i];
      }
    }
    if (first.empty()) first = encoded;
    if (good && encoded == first) continue;
    ++failures;
    std::fprintf(stderr, "wire %d, %zu values: wrong with instruction set %d\n", static_cast<int>(wire), count, set);
  }
}

// An average of integers across hosts: a sum that is divided once, by more ranks than an int8 counts to.
template <typename Number>
void check_division(DataType type) {
  threads_of_rank = 3;
  for (const int divisor : {2, 127, 128, 200, 256, 300}) {
    std::vector<Number> numbers(10'000);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<Number>(i * 37);
    const auto before = numbers;
    kernels::divide(numbers.data(), numbers.data(), numbers.size(), type, divisor);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == static_cast<Number>(before[i] / divisor)) continue;
      ++failures;
      std::fprintf(stderr, "type %d, number %zu: wrong when divided by %d\n", static_cast<int>(type), i, divisor);
      return;
    }
  }
}

}  // namespace

int main() {
  check_division<int8_t>(DataType::kInt8);
  check_division<uint8_t>(DataType::kUint8);
  check_division<int16_t>(DataType::kInt16);
  check_division<int64_t>(DataType::kInt64);
  std::mt19937_64 random(1);
  for (const Wire wire : {Wire::kBFloat16, Wire::kInt8}) {
    for (const size_t count : {1, 3, 16, 255, 256, 257, 1000, 4099}) {
      for (const float size : {0.0f, 1e-40f, 1e-20f, 1.0f, 1e30f}) {
        std::normal_distribution<float> normal;
        std::vector<float> values(count);
        for (auto& value : values) value = normal(random) * size;
        check_wire(wire, values);
        values[random() % count] = INFINITY;
        check_wire(wire, values);
        values[random() % count] = NAN;
        check_wire(wire, values);
      }
    }
  }
  for (int type = 0; type < 9; ++type) {
    for (int reduction = 0; reduction < (type < 5 ? 8 : 5); ++reduction) {
      for (const size_t ranks : {1, 2, 3, 17, 128, 256}) {
        for (const size_t count : {1, 2, 7, 16, 31, 64, 129, 1000}) {
          std::vector<std::vector<std::byte>> inputs(ranks);
          for (auto& input : inputs) {
            input.resize(count * size_of(static_cast<DataType>(type)));
            for (auto& byte : input) byte = static_cast<std::byte>(random());
          }
          check(static_cast<DataType>(type), static_cast<Reduction>(reduction), inputs, count > 1 ? random() % 2 : 0);
        }
      }
    }
  }
  // All 65 536 numbers of a 16-bit format, beside each other's neighbours: every rounding to the last place.
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (const uint16_t distance : {0, 1, 2, 1024, 4097, 0x8000}) {
      std::vector<std::vector<std::byte>> inputs(2, std::vector<std::byte>(2 << 16));
      for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
        const auto number = static_cast<uint16_t>(bits);
        const auto other = static_cast<uint16_t>(bits + distance);
        std::memcpy(&inputs[0][2 * bits], &number, 2);
        std::memcpy(&inputs[1][2 * bits], &other, 2);
      }
      for (int reduction = 0; reduction < 5; ++reduction) check(type, static_cast<Reduction>(reduction), inputs, 0);
    }
  }
  return failures > 0;
}
