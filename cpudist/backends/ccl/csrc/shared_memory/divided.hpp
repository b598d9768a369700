// A large call as several, each of which carries a part of it over a channel of its own.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "../kernels/floating_point.hpp"
#include "../parallel.hpp"
#include "requests.hpp"

namespace cpudist::shared_memory {

constexpr int kMostChannels = 8;

// One of the parts of a call: which elements of each of its buffers it has. Parts begin at whole cache lines.
struct Part {
  size_t begin(size_t elements, size_t width) const {
    if (parts == 1) return number * elements;
    const size_t line = 64 / width;
    return std::min(number * ((elements + parts * line - 1) / (parts * line) * line), elements);
  }
  size_t count(size_t elements, size_t width) const {
    return Part{number + 1, parts}.begin(elements, width) - begin(elements, width);
  }

  size_t number;
  size_t parts;
};

// How many parts a call has where a group has so many channels.
inline size_t parts_of(size_t bytes, size_t channels) {
  return std::clamp<size_t>(bytes / parallel::least_bytes, 1, channels);
}

// Each computing thread carries its parts from beginning to end and does not wait for the other threads. A thread that
// has no others carries one part after the other; the ranks need not agree about that.
class Divided final : public Request {
 public:
  using Parts = std::vector<std::unique_ptr<CollectiveRequest>>;

  // `bytes`: of all parts together.
  Divided(Parts parts, size_t bytes) : parts_(std::move(parts)), bytes_(bytes / parts_.size()) {}

  // The others are woken only while something moves, and not by each look of a rank that waits for a late one.
  Progress test() override {
    if (!parts_[first_]->has_turn()) return Progress::kWaiting;
    const int threads = moved_ ? parallel::available() : 1;
    moved_ = threads > 1 ? advance_all(threads) : advance(parts_[first_]);
    while (first_ < parts_.size() && !parts_[first_]) ++first_;
    if (first_ == parts_.size()) return Progress::kComplete;
    return moved_ ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  // The threads return after this time, because the engine's other calls wait meanwhile, ...
  static constexpr std::chrono::microseconds kLongest{500};
  // ... and when nothing has moved for this time.
  static constexpr std::chrono::microseconds kPatience{100};

  // Returns whether it has moved. A part that is complete is gone.
  static bool advance(std::unique_ptr<CollectiveRequest>& part) {
    const Progress progress = part->test();
    if (progress == Progress::kComplete) part.reset();
    return progress != Progress::kWaiting;
  }

  bool advance_all(int threads) {
    const auto begin = Clock::now();
    std::atomic<Clock::duration> moved{Clock::duration::zero()};  // when a part has moved last
    parallel::run(threads, [&](int thread) {
      const kernels::DefaultFloatingPoint floating_point;  // a thread may have another state than the one that waits
      for (bool left = true; left;) {
        const auto now = Clock::now() - begin;
        bool some_moved = left = false;
        for (auto i = static_cast<size_t>(thread); i < parts_.size(); i += static_cast<size_t>(threads)) {
          if (!parts_[i]) continue;
          some_moved = advance(parts_[i]) || some_moved;
          if (!parts_[i]) parallel::count(thread, bytes_);
          left = left || parts_[i];
        }
        if (some_moved) {
          moved = Clock::now() - begin;
        } else if (now - moved.load() > kPatience) {
          return;
        } else {
          sched_yield();
        }
        if (now > kLongest) return;
      }
    });
    return moved.load() > Clock::duration::zero();
  }

  Parts parts_;
  const size_t bytes_;  // of each part
  size_t first_ = 0;    // the parts before this one are complete
  bool moved_ = true;
};

}  // namespace cpudist::shared_memory
