#include "baseline.hpp"

#include <algorithm>

namespace cpudist::oneccl {

std::vector<double> allreduce_baseline(const Group& group, const Baseline& what) {
  const Communicator communicator(group);
  const size_t width = what.bfloat16 ? 2 : 4;
  const auto type = what.bfloat16 ? ccl::datatype::bfloat16 : ccl::datatype::float32;
  const size_t piece = std::max(what.piece_bytes, width);
  std::vector<std::vector<char>> buffers(what.buffers, std::vector<char>(what.bytes));
  std::vector<double> seconds;
  for (size_t repeat = 0; repeat < what.repeats; ++repeat) {
    auto* const data = buffers[repeat % what.buffers].data();
    const auto begin = Clock::now();
    for (size_t offset = 0; offset < what.bytes; offset += piece) {
      auto* const part = data + offset;
      const size_t count = std::min(piece, what.bytes - offset) / width;
      ccl::allreduce(part, part, count, type, ccl::reduction::sum, communicator.raw()).wait();
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace cpudist::oneccl
