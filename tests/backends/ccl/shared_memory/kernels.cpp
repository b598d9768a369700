// Every reduction of every type, on every instruction set that this machine has, against the reference.
#include <cstdio>
#include <random>

#include "reference.hpp"
#include "shared_memory/kernels.hpp"

using namespace cpudist;
using namespace cpudist::testing;
using shared_memory::InstructionSet;

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
  for (int set = 0; set <= static_cast<int>(shared_memory::best_instruction_set()); ++set) {
    // One element more on either side, which must stay as it is.
    std::vector<std::byte> output((count + 2) * width, std::byte{0x5a});
    auto copy = output;
    const std::vector<const void*> pointers(sources.begin(), sources.end());
    shared_memory::reduce_kernel(type, reduction, static_cast<InstructionSet>(set))(
        output.data() + width, copy.data() + width, pointers.data(), static_cast<int>(inputs.size()), count);
    const std::vector<std::byte> found(output.begin() + static_cast<long>(width),
                                       output.end() - static_cast<long>(width));
    bool good = same(type, found, expected) && copy == output;
    for (size_t i = 0; i < width; ++i)
      good = good && output[i] == std::byte{0x5a} && output.end()[-1 - static_cast<long>(i)] == std::byte{0x5a};
    if (first.empty()) first = found;
    good = good && found == first;  // NaNs too: bit by bit what the other instruction sets make of them
    if (good) continue;
    ++failures;
    std::fprintf(stderr, "type %d, reduction %d, %zu ranks, %zu elements: wrong with instruction set %d\n",
                 static_cast<int>(type), static_cast<int>(reduction), inputs.size(), count, set);
  }
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  for (int type = 0; type < 9; ++type) {
    for (int reduction = 0; reduction < 5; ++reduction) {
      for (const size_t ranks : {1, 2, 3, 17}) {
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
