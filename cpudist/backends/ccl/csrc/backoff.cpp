#include "backoff.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace cpudist {

namespace {

struct Core {
  Clock::duration yield{};            // duration of this thread's last yield
  Clock::time_point crowded_until{};  // until then the thread sleeps: another thread computes on its core
};

thread_local Core core;

// Sleeps for an eighth of the time waited so far (1 us to 1 ms). The kernel adds its timer slack, 50 us by default, so
// a sleep after 75 us of waiting takes about 60 us.
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
  // A peer with a core of its own answers within 5 us. A yield of over 2 us lets another thread run, perhaps the peer:
  // yield at once. On a crowded core, spin 75 us: a peer wakes from a sleep 60 us late, and ranks would sleep in turn.
  const auto spin = microseconds(crowded ? 75 : core.yield > microseconds(2) ? 0 : 5);
  if (waited < spin) return;
  if (crowded || waited > Milliseconds(100)) return nap(waited);
  sched_yield();
  const auto yield = Clock::now() - now;
  const auto shorter = std::min(yield, std::exchange(core.yield, yield));
  if (shorter > Milliseconds(1)) core.crowded_until = now + yield + 32 * shorter;
}

}  // namespace cpudist
