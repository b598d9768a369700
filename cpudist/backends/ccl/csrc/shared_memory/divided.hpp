// Divides a large call into several, each of which carries a part of the data over a channel of its own.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "../kernels/floating_point.hpp"
#include "../parallel.hpp"
#include "requests.hpp"
#include "shares.hpp"

namespace cpudist::shared_memory {

constexpr int kMostChannels = 8;

// Number of parts of a call in a group with so many channels. All threads of OpenMP's pool join or none, so a call that
// is large enough for the pool has a part for each channel.
inline size_t parts_of(size_t bytes, size_t channels) { return bytes < parallel::least_bytes ? 1 : channels; }

// The threads of a rank advance the parts of a call in steps of at most two pieces. Each thread has parts of its own,
// which stay in its cache. It also advances the parts of threads that have not joined yet, perhaps because they have no
// core. A rank may carry all parts with one thread, also if other ranks use several.
class Divided final : public Request {
 public:
  using Requests = std::vector<std::unique_ptr<CollectiveRequest>>;

  // `bytes`: of all parts together.
  Divided(Requests requests, size_t bytes) : parts_(requests.size()), bytes_(bytes / requests.size()) {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].request = std::move(requests[i]);
  }

  // Calls the other threads only while something moves, not in each poll of a rank that waits for a late rank.
  Progress test() override {
    if (!parts_[first_].request->has_turn()) return Progress::kWaiting;
    const int threads = moved_ && lost_ == Clock::duration::zero() ? parallel::available() : 1;
    if (threads > 1) {
      moved_ = advance_all(static_cast<size_t>(threads));
    } else {
      const auto begin = Clock::now();
      moved_ = advance(parts_[first_]);
      lost_ -= std::min(lost_, Clock::now() - begin);
    }
    while (first_ < parts_.size() && !parts_[first_].request) ++first_;
    if (first_ == parts_.size()) return Progress::kComplete;
    return moved_ ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  // The threads return after this time, because the engine's other calls wait meanwhile. It is long compared with
  // joining again (30 us with 8 threads), longer than a step, and shorter than a time slice of another program.
  static constexpr std::chrono::microseconds kLongest{500};
  // They also return when nothing has moved for this time, three times as long as joining takes.
  static constexpr std::chrono::microseconds kPatience{100};

  struct alignas(64) Share {
    std::atomic_flag taken;                      // a thread advances it
    std::unique_ptr<CollectiveRequest> request;  // null: complete
  };

  // Returns whether the part has moved. Frees the request of a complete part.
  static bool advance(Share& part) {
    const Progress progress = part.request->test();
    if (progress == Progress::kComplete) part.request.reset();
    return progress != Progress::kWaiting;
  }

  // Advances the part unless another thread does. Returns kComplete if the part was complete before.
  Progress take(Share& part, size_t thread) {
    if (part.taken.test() || part.taken.test_and_set()) return Progress::kWaiting;
    Progress progress = Progress::kComplete;
    if (part.request) {
      progress = advance(part) ? Progress::kMoved : Progress::kWaiting;
      if (!part.request) parallel::count(static_cast<int>(thread), bytes_);
    }
    part.taken.clear();
    return progress;
  }

  bool advance_all(size_t threads) {
    const auto begin = Clock::now();
    std::atomic<uint64_t> come{0};                                // bit i: thread i has joined
    std::atomic<Clock::duration> moved{Clock::duration::zero()};  // when a part has moved last
    Clock::time_point done;                                       // when the calling thread has left
    parallel::run(static_cast<int>(threads), [&](int number) {
      const kernels::DefaultFloatingPoint floating_point;  // a thread may have another state than the waiting thread
      const auto thread = static_cast<size_t>(number);
      if (thread < parts_.size()) come |= uint64_t{1} << thread;
      for (bool left = true; left;) {
        const auto now = Clock::now() - begin;
        bool some_moved = left = false;
        for (size_t i = 0; i < parts_.size(); ++i) {
          const size_t part = (thread + i) % parts_.size();  // its own part first; meanwhile the other threads join
          if (const size_t owner = part % threads; owner != thread && (come >> owner & 1) != 0) continue;
          const Progress progress = take(parts_[part], thread);
          some_moved = some_moved || progress == Progress::kMoved;
          left = left || progress != Progress::kComplete;
        }
        if (some_moved) moved = Clock::now() - begin;
        if (now > kLongest || now - moved.load() > kPatience) break;
        if (!some_moved) sched_yield();
      }
      if (number == 0) done = Clock::now();
    });
    if (const auto waited = Clock::now() - done; waited > kLongest) lost_ = waited;
    return moved.load() > Clock::duration::zero();
  }

  // How long the calling thread has waited for threads whose core another program has. It then carries calls alone for
  // as long. So it loses at most twice this time, and takes at most twice as long as a thread that is always alone.
  static inline thread_local Clock::duration lost_{};

  std::vector<Share> parts_;
  const size_t bytes_;  // of each part
  size_t first_ = 0;    // the parts before this one are complete
  bool moved_ = true;
};

}  // namespace cpudist::shared_memory
