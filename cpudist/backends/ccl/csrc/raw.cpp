#include "raw.hpp"

#include <algorithm>

#include "communicator.hpp"
#include "engine.hpp"

namespace cpudist {

std::vector<double> raw_allreduce(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, size_t bytes,
                                  int repeats, size_t piece_bytes) {
  const Communicator communicator(store, rank, size, std::chrono::minutes(5), 1);
  const size_t count = bytes / sizeof(float);
  const size_t piece = std::max<size_t>(piece_bytes / sizeof(float), 1);
  std::vector<float> data(count);
  std::vector<double> seconds;
  Engine::get().exclusively([&] {
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
  });
  return seconds;
}

}  // namespace cpudist
