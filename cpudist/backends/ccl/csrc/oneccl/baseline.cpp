#include "baseline.hpp"

#include <algorithm>

namespace cpudist::oneccl {

std::vector<double> allreduce_baseline(const Group& group, size_t bytes, int repeats, size_t piece_bytes) {
  const Communicator communicator(group);
  const size_t count = bytes / sizeof(float);
  const size_t piece = std::max<size_t>(piece_bytes / sizeof(float), 1);
  std::vector<float> data(count);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto begin = Clock::now();
    for (size_t offset = 0; offset < count; offset += piece) {
      auto* part = data.data() + offset;
      ccl::allreduce(part, part, std::min(piece, count - offset), ccl::datatype::float32, ccl::reduction::sum,
                     communicator.raw())
          .wait();
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace cpudist::oneccl
