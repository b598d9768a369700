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

// The threads of a rank take the parts of a call step by step: a thread carries a part by at most two pieces, then takes
// the one that is furthest behind of those that no thread is in. So a thread keeps its part while all others run, and a
// thread without a core has none. A rank may carry all parts with one thread; the ranks need not agree about that.
class Divided final : public Request {
 public:
  using Requests = std::vector<std::unique_ptr<CollectiveRequest>>;

  // `bytes`: of all parts together.
  Divided(Requests requests, size_t bytes)
      : parts_(requests.size()), left_(requests.size()), bytes_(bytes / requests.size()) {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].request = std::move(requests[i]);
  }

  // The others are called only while something moves, and not by each look of a rank that waits for a late one.
  Progress test() override {
    while (parts_[first_].request == nullptr) ++first_;
    if (!parts_[first_].request->has_turn()) return Progress::kWaiting;
    const int threads = moved_ ? parallel::available() : 1;
    moved_ = threads > 1 ? advance_all(threads) : advance(parts_[first_]);
    if (left_ == 0) return Progress::kComplete;
    return moved_ ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  // The caller returns after this time, because the engine's other calls wait meanwhile, ...
  static constexpr std::chrono::microseconds kLongest{500};
  // ... and when nothing has moved for this time.
  static constexpr std::chrono::microseconds kPatience{100};

  struct alignas(64) Share {
    std::atomic<bool> taken{false};
    std::atomic<uint64_t> turns{0};
    std::unique_ptr<CollectiveRequest> request;  // null: complete. Used by the thread that has taken the part
  };

  // Returns whether it has moved.
  bool advance(Share& part) {
    const Progress progress = part.request->test();
    if (progress == Progress::kComplete) {
      part.request.reset();
      part.turns = UINT64_MAX;
      --left_;
    }
    return progress != Progress::kWaiting;
  }

  // Takes a part and advances it; returns whether it has moved.
  bool take(int thread) {
    const auto behind = [](const Share& one, const Share& other) {
      return std::pair(one.taken.load(), one.turns.load()) < std::pair(other.taken.load(), other.turns.load());
    };
    Share& part = *std::min_element(parts_.begin(), parts_.end(), behind);
    if (part.taken || part.taken.exchange(true)) return false;
    bool moved = false;
    if (part.request) {
      ++part.turns;
      moved = advance(part);
      if (!part.request) parallel::count(thread, bytes_);
    }
    part.taken = false;
    return moved;
  }

  bool advance_all(int threads) {
    const auto begin = Clock::now();
    std::atomic<Clock::duration> moved{Clock::duration::zero()};  // when a part has moved last
    std::atomic<bool> over{false};
    parallel::run(threads, [&](int thread) {
      const kernels::DefaultFloatingPoint floating_point;  // a thread may have another state than the one that waits
      try {
        while (!over && left_ > 0) {
          const bool some_moved = take(thread);
          const auto now = Clock::now() - begin;
          if (some_moved) {
            moved = now;
          } else {
            sched_yield();
          }
          if (thread == 0 && (now > kLongest || now - moved.load() > kPatience)) over = true;
        }
      } catch (...) {
        over = true;
        throw;
      }
    });
    return moved.load() > Clock::duration::zero();
  }

  std::vector<Share> parts_;
  std::atomic<size_t> left_;  // parts that are not complete
  const size_t bytes_;        // of each part
  size_t first_ = 0;          // the parts before this one are complete
  bool moved_ = true;
};

}  // namespace cpudist::shared_memory
