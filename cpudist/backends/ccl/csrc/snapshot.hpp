// What this rank is communicating at one moment, for another thread.
#pragma once

#include "work.hpp"

namespace cpudist {

// A call in flight.
struct PendingCall {
  Call call;
  size_t bytes;                    // of the tensors that receive the result
  std::optional<at::Tensor> like;  // the first of them
  double seconds;                  // since it was called

  PendingCall(AsyncWork& work, Clock::time_point now);
};

struct Snapshot {
  std::vector<PendingCall> pending;  // oldest first; after a failure the calls that failed with it
  std::vector<GroupState> groups;    // with the collective that each completed last
};

}  // namespace cpudist
