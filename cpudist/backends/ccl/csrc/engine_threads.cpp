// The engine's own threads.
#include "engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <utility>

#include "backoff.hpp"

namespace cpudist {

namespace {

// Sleep between polls while a work has a future. It is longer while other threads compute, because a poll takes their
// core: in 2 ms a link of 1 Gbit/s sends 250 KB, which the kernel's buffers hold.
constexpr Milliseconds kNapBesideComputing{2};
constexpr std::chrono::microseconds kShortNap{100};

std::chrono::nanoseconds time_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Whether the other threads of this process have computed for most of the time since the last call.
class OthersCompute {
 public:
  bool operator()() {
    const auto others = time_of(CLOCK_PROCESS_CPUTIME_ID) - time_of(CLOCK_THREAD_CPUTIME_ID);
    const auto now = Clock::now();
    const auto computed = others - std::exchange(others_, others);
    return 2 * computed > now - std::exchange(last_, now);
  }

 private:
  std::chrono::nanoseconds others_{};
  Clock::time_point last_{};
};

}  // namespace

void Engine::start_thread(bool polls, Milliseconds nap) {
  const WithoutGil without_gil;
  Lock lock(mutex_);
  if (started_ || !usable()) return;
  started_ = true;
  polls_ = polls;
  nap_ = nap;
  add_thread();
}

// Wakes or adds a thread if one is needed. Called with the lock held.
void Engine::call_thread() {
  if (!needs_thread()) return;
  if (idle_threads_ > 0) {
    wake_.notify_one();
  } else {
    add_thread();
  }
}

void Engine::add_thread() {
  ++idle_threads_;
  threads_.emplace_back(&Engine::run, this);
  pthread_setname_np(threads_.back().native_handle(), "cpudist-ccl");
}

// The body of the engine's threads: sleeps until it is needed, then polls until a work is complete, or
// completes a future.
void Engine::run() {
  Finished finished;
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !usable() || needs_thread(); });
    if (!needs_thread()) return;
    --idle_threads_;
    if (with_future_.empty()) {
      thread_polls_ = true;
      poll_until_finished(lock, finished);
      thread_polls_ = false;
      ++idle_threads_;
      announce(lock, finished);
    } else {
      auto work = std::move(with_future_.front());
      with_future_.pop_front();
      call_thread();  // its callbacks may wait for other works, and for their futures
      lock.unlock();
      work->announce();
      work.reset();  // without the lock, because freeing a tensor may need the GIL
      lock.lock();
      ++idle_threads_;
    }
  }
}

void Engine::poll_until_finished(Lock& lock, Finished& finished) {
  Backoff backoff;
  OthersCompute others_compute;
  bool moved = false;
  while (usable() && !in_flight_.empty() && waiting_ == 0 && finished.empty()) {
    const auto now = Clock::now();
    if (moved) backoff.reset(now);
    if (polls() || moved) {
      lock.unlock();
      backoff.pause(now);
      lock.lock();
    } else {
      hurry_ = false;
      const Clock::duration nap = !any_future() ? nap_ : others_compute() ? kNapBesideComputing : kShortNap;
      wake_.wait_for(lock, nap, [this] { return !usable() || hurry_; });
    }
    if (!usable() || waiting_ > 0) return;
    moved = progress(finished);
    expire_overdue(finished);
  }
}

}  // namespace cpudist
