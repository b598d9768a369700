// In place of torch's pool: threads of our own for each call.
#include <thread>

#include "parallel.hpp"
#include "ranks.hpp"

namespace cpudist {

namespace testing {
int threads_of_rank = 1;
Milliseconds lateness{};
std::atomic<int> joins{0};
}  // namespace testing

namespace parallel {

const size_t least_bytes = 4096;

int lent() { return testing::threads_of_rank; }

int available() { return testing::threads_of_rank; }

void run(int threads, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
  const auto guarded = [&](int thread) {
    try {
      body(thread);
    } catch (...) {
      errors[static_cast<size_t>(thread)] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  const auto late = [&](int thread) {
    std::this_thread::sleep_for(testing::lateness);
    guarded(thread);
  };
  ++testing::joins;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(late, thread);
  guarded(0);
  for (auto& thread : others) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void count(int, size_t) {}

}  // namespace parallel

}  // namespace cpudist
