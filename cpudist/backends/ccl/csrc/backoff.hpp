// How a thread waits between two polls: it spins for some microseconds, then yields the core, then sleeps.
//
// Yielding is fast where the other threads yield too, as ranks do that wait for each other. A thread that computes
// takes a whole time slice, milliseconds, for each yield. So a thread that has come back that late twice sleeps from
// then on: it gets its core back when it wakes up. After 32 such times it yields once to find out whether that is still
// so, which costs 3 % of the time.
#pragma once

#include "transport.hpp"

namespace cpudist {

class Backoff {
 public:
  // Called when something has moved.
  void reset(Clock::time_point now) { moved_ = now; }

  void pause(Clock::time_point now);

 private:
  Clock::time_point moved_ = Clock::now();
};

}  // namespace cpudist
