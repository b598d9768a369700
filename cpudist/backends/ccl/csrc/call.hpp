// The identity of a c10d call, for error messages and snapshots.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "transport.hpp"

namespace cpudist {

constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 50);  // int64 nanoseconds overflow at 292 years

struct Call;

// Shared state of the calls of one process group.
struct GroupState {
  std::string name;
  bool across_machines = false;
  // The completed collective with the highest number; guarded by the engine's lock.
  const char* last_name = nullptr;
  uint64_t last_sequence = 0;

  void completed(const Call& call);
};

struct Call {
  const char* name;         // c10d's name of the operation, such as "all_reduce"
  uint64_t sequence;        // number among the group's collectives, the same on all ranks; 0 for send and recv
  std::optional<int> peer;  // only for send and recv: the peer's rank in the group, negative for any source
  int rank;
  int size;
  std::shared_ptr<GroupState> group;
  Milliseconds timeout;

  std::string describe() const;
};

}  // namespace cpudist
