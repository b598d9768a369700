#include "backoff.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace cpudist {

namespace {

struct Core {
  Clock::duration yield{};            // how long this thread was away when it yielded last
  Clock::time_point crowded_until{};  // another thread computes on it
};

thread_local Core core;

// Sleeps for an eighth of the time that it has waited already. The kernel adds its timer slack, 50 us by default, so a
// sleep after 75 us takes about 60.
void nap(Clock::duration waited) {
  const auto time = std::clamp<Clock::duration>(waited / 8, std::chrono::microseconds(1), Milliseconds(1));
  const timespec length{0, std::chrono::nanoseconds(time).count()};
  nanosleep(&length, nullptr);
}

}  // namespace

void Backoff::pause(Clock::time_point now) {
  using std::chrono::microseconds;
  const bool crowded = now < core.crowded_until;
  const auto waited = now - moved_;
  // A rank with a core of its own answers within 5 us. A yield of over 2 us has let another thread run, perhaps that rank.
  // A thread that wakes from a sleep is 60 us late for the next call; the others spin on, else all would sleep in turn.
  const auto spin = microseconds(crowded ? 75 : core.yield > microseconds(2) ? 0 : 5);
  if (waited < spin) return;
  if (crowded || waited > Milliseconds(100)) return nap(waited);
  sched_yield();
  const auto yield = Clock::now() - now;
  const auto shorter = std::min(yield, std::exchange(core.yield, yield));
  if (shorter > Milliseconds(1)) core.crowded_until = now + yield + 32 * shorter;
}

}  // namespace cpudist
