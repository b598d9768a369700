#include "computing_threads.hpp"

#include <array>
#include <atomic>

#include <ATen/Parallel.h>
#include <pthread.h>

#include "parallel.hpp"

namespace cpudist {

namespace {

struct alignas(64) Bytes {
  std::atomic<uint64_t> count{0};
};

std::array<Bytes, 256> bytes_of;  // by thread number; all threads beyond the array share its last entry

// OpenMP creates a pool for each thread that starts a parallel region. Only the pool of the script's own thread is idle
// while that thread waits. A pool of the engine's thread, or of a thread that saves a checkpoint, would take the cores
// from the computing threads.
std::atomic<pthread_t> computing{};
std::atomic<int> cores_of_rank{1};

}  // namespace

void lend_computing_threads(int cores) {
  computing = pthread_self();
  cores_of_rank = cores;
}

std::vector<uint64_t> bytes_of_threads() {
  std::vector<uint64_t> result;
  for (const auto& bytes : bytes_of) {
    if (bytes.count > 0) result.push_back(bytes.count);
  }
  return result;
}

namespace parallel {

const size_t least_bytes = size_t{256} << 10;

int lent() {
  const int threads = at::get_num_threads();
  return threads <= cores_of_rank ? threads : 1;
}

int available() { return cores_of_rank > 1 && pthread_self() == computing && !at::in_parallel_region() ? lent() : 1; }

// OpenMP's threads spin after an operator, so they join at once. Threads of another pool would wait for a time slice on
// their cores (tests/backends/ccl/shared_memory/pools.cpp). Like torch's operators, run() waits for the last thread.
void run(int threads, const std::function<void(int)>& body) {
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) body(static_cast<int>(thread));
  });
}

void count(int thread, size_t bytes) {
  bytes_of[std::min(static_cast<size_t>(thread), bytes_of.size() - 1)].count.fetch_add(bytes,
                                                                                       std::memory_order_relaxed);
}

}  // namespace parallel

}  // namespace cpudist
