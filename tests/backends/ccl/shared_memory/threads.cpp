// In place of torch's pool: threads of our own for each step, and calls of any size are divided among them.
#include <thread>

#include "parallel.hpp"
#include "ranks.hpp"

namespace cpudist {

namespace testing {
int threads_of_rank = 1;
}

namespace parallel {

const size_t least_bytes = 4096;

int available() { return testing::threads_of_rank; }

void run(int threads, const std::function<void(int)>& body) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(body, thread);
  body(0);
  for (auto& thread : others) thread.join();
}

void count(size_t, size_t) {}

}  // namespace parallel

}  // namespace cpudist
