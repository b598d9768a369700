// How a thread waits between two polls: it spins for some microseconds, then yields the core, then sleeps.
//
// Yielding is fast where the other threads on the core yield too, as ranks do that wait for each other. A thread that
// computes keeps the core after a yield for a whole time slice (milliseconds). So after two late returns in a row the
// waiting thread sleeps instead: it gets the core back when it wakes up. After 32 times the delay it yields once to
// test whether the core is still busy, which costs 3 % of the time.
#pragma once

#include "transport.hpp"

namespace cpudist {

class Backoff {
 public:
  // Restarts the wait. To be called when something has moved.
  void reset(Clock::time_point now) { moved_ = now; }

  void pause(Clock::time_point now);

 private:
  Clock::time_point moved_ = Clock::now();
};

}  // namespace cpudist
