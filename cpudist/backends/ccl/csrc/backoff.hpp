// How a thread waits between two polls: spinning for some microseconds, then letting others have the core, then napping.
//
// Letting others have the core is right where they do the same, as ranks do that wait for each other. Who computes takes
// a whole time slice, milliseconds, for each yield. So a thread that has come back that late twice naps from then on: a
// sleeper gets its core back when it wakes up. Now and then it yields once to find out whether that is still so.
#pragma once

#include "transport.hpp"

namespace cpudist {

class Backoff {
 public:
  // Something has moved.
  void reset(Clock::time_point now) { moved_ = now; }

  void pause(Clock::time_point now);

 private:
  Clock::time_point moved_ = Clock::now();
};

}  // namespace cpudist
