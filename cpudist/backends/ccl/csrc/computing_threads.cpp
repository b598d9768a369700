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

std::array<Bytes, 256> bytes_of;  // by thread; those beyond have the last one together

// OpenMP gives each thread that asks for one a pool of its own. Only the script's own thread has one that idles while
// it waits: a pool of the engine's thread, or of one that saves a checkpoint, would take the cores from those that
// compute.
std::atomic<pthread_t> computing{};
std::atomic<int> cores_of_rank{1};

// Another program computes on a core of the pool.
thread_local Clock::time_point crowded_until{};

}  // namespace

void lend_computing_threads(int cores) {
  computing = pthread_self();
  cores_of_rank = cores;
  crowded_until = {};
}

std::vector<uint64_t> bytes_of_threads() {
  std::vector<uint64_t> result;
  for (const auto& bytes : bytes_of) {
    if (bytes.count == 0) break;
    result.push_back(bytes.count);
  }
  return result;
}

namespace parallel {

const size_t least_bytes = size_t{512} << 10;

// A call waits for the whole pool. A thread that has no core would hold up the others.
int lent() {
  const int threads = at::get_num_threads();
  return threads <= cores_of_rank ? threads : 1;
}

int available() {
  if (cores_of_rank == 1 || pthread_self() != computing || at::in_parallel_region()) return 1;
  return Clock::now() >= crowded_until ? lent() : 1;
}

// Where a thread has to wait for a time slice of its core, the calling one does without the pool for a while. So of a
// call's time at most a thirtieth is such waiting.
void run(int threads, const std::function<void(int)>& body) {
  Clock::time_point done;  // with the calling thread's share
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) body(static_cast<int>(thread));
    if (begin == 0) done = Clock::now();
  });
  const auto now = Clock::now();
  if (now - done > Milliseconds(1)) crowded_until = now + 32 * (now - done);
}

void count(int thread, size_t bytes) {
  bytes_of[std::min(static_cast<size_t>(thread), bytes_of.size() - 1)].count.fetch_add(bytes,
                                                                                       std::memory_order_relaxed);
}

}  // namespace parallel

}  // namespace cpudist
