// Whose threads carry a large allreduce: pools RANKS THREADS KB [neighbour]. Rank r has THREADS processors from r * THREADS
// on, while there are enough.
//
// Three ways take turns: the calling thread alone; OpenMP's pool, which the caller joins; parked threads of our own, which
// claim the call while it is open, so that the caller waits for none that has not come. Before each call all of OpenMP's
// threads compute for 0.3 ms, as in a training step. With `neighbour`, a process of higher priority computes on processor 1
// for 1 to 20 ms, a tenth of the time. Prints microseconds of a call, and of the loop of both.
// Compiled with -fopenmp, rendezvous.cpp and shared_memory/unity.cpp of csrc.
#include <linux/futex.h>
#include <omp.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "parallel.hpp"
#include "ranks.hpp"

using namespace cpudist;
using namespace cpudist::testing;
using Microseconds = std::chrono::duration<double, std::micro>;

namespace {

enum Way { kAlone, kOpenMp, kParked, kWays };
constexpr const char* kNames[] = {"one thread", "OpenMP", "parked"};
constexpr int kRounds = 12;
constexpr Milliseconds kRound{200};

int threads_of_pool = 1;
Way way = kAlone;

// Threads sleep until a call is open. A word holds the number of the call, whether it is open, and how many are in it.
class Parked {
 public:
  void run(int threads, const std::function<void(int)>& body) {
    for (; started_ < threads - 1; ++started_) std::thread(&Parked::work, this, started_ + 1).detach();
    body_ = &body;
    word_ = (word_ / kCall + 1) * kCall + kOpen;
    futex(FUTEX_WAKE_PRIVATE, static_cast<uint32_t>(threads));
    body(0);
    word_ -= kOpen;
    while (word_ % kOpen != 0) sched_yield();
  }

 private:
  static constexpr uint32_t kOpen = 256, kCall = 512;

  void futex(int operation, uint32_t value) { syscall(SYS_futex, &word_, operation, value, nullptr, nullptr, 0); }

  [[noreturn]] void work(int thread) {
    for (uint32_t done = 0;;) {
      uint32_t word = word_;
      if (word % kCall < kOpen || word / kCall == done) {
        futex(FUTEX_WAIT_PRIVATE, word);
      } else if (word_.compare_exchange_weak(word, word + 1)) {
        done = word / kCall;
        (*body_)(thread);
        --word_;
      }
    }
  }

  std::atomic<uint32_t> word_{0};
  const std::function<void(int)>* body_ = nullptr;
  int started_ = 0;
};

void run_on(int first, int count) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  for (int i = 0; i < count; ++i)
    CPU_SET(static_cast<size_t>(first + i) % std::thread::hardware_concurrency(), &processors);
  sched_setaffinity(0, sizeof processors, &processors);
}

void compute(Clock::duration time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) continue;
}

[[noreturn]] void disturb() {
  run_on(1, 1);
  const sched_param priority{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) std::perror("no higher priority");
  std::mt19937 random;
  while (true) {
    const std::chrono::microseconds taken(std::uniform_int_distribution(1000, 20'000)(random));
    compute(taken);
    std::this_thread::sleep_for(9 * taken);
  }
}

void compare(const std::filesystem::path& folder, int rank, int ranks, size_t bytes) {
  run_on(rank * threads_of_pool, threads_of_pool);
  const auto transport = make_transport(folder, rank, ranks);
  std::vector<float> data(bytes / sizeof(float));
  const auto reduce = [&](float* values, size_t count, Reduction reduction) {
    complete(*transport->allreduce(values, values, count, DataType::kFloat32, reduction));
  };
  std::vector<double> calls[kWays];
  double seconds[kWays] = {};
  for (int turn = 0; turn < kRounds * kWays; ++turn) {
    way = static_cast<Way>(turn % kWays);
    const auto begin = Clock::now();
    for (float goes_on = 1; goes_on != 0;) {
#pragma omp parallel num_threads(threads_of_pool)
      compute(std::chrono::microseconds(300));
      complete(*transport->barrier());
      const auto called = Clock::now();
      reduce(data.data(), data.size(), Reduction::kSum);
      calls[way].push_back(Microseconds(Clock::now() - called).count());
      goes_on = Clock::now() - begin < kRound;
      reduce(&goes_on, 1, Reduction::kMin);
    }
    seconds[way] += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  if (rank != 0) return;
  for (int i = 0; i < kWays; ++i) {
    auto& times = calls[i];
    std::sort(times.begin(), times.end());
    const auto quantile = [&](double part) {
      return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))];
    };
    std::printf("%-10s call: median %6.0f  95 %% %6.0f  max %6.0f   loop: %6.0f us\n", kNames[i], quantile(0.5),
                quantile(0.95), quantile(1), seconds[i] * 1e6 / static_cast<double>(times.size()));
  }
}

}  // namespace

namespace cpudist::parallel {

const size_t least_bytes = size_t{256} << 10;

int lent() { return threads_of_pool; }

int available() { return way == kAlone ? 1 : threads_of_pool; }

void run(int threads, const std::function<void(int)>& body) {
  static auto* const parked = new Parked;
  if (way == kParked) return parked->run(threads, body);
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num());
}

void count(int, size_t) {}

}  // namespace cpudist::parallel

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const int ranks = std::atoi(arguments[1]);
  threads_of_pool = std::atoi(arguments[2]);
  const auto bytes = static_cast<size_t>(std::atol(arguments[3])) << 10;
  const pid_t other = count > 4 ? fork() : -1;
  if (other == 0) disturb();
  const int failed = in_a_folder([&](const auto& folder) {
    return run_ranks(ranks, false, [&](int rank) { compare(folder, rank, ranks, bytes); });
  });
  if (other > 0) kill(other, SIGKILL);
  return failed;
}
