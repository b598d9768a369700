// Calls in flight: each is a coroutine, with an occasional check of the rank that it waits for.
#pragma once

#include <utility>
#include <vector>

#include "../coroutine.hpp"
#include "channel.hpp"

namespace cpudist::shared_memory {

// How often a request tests its condition before it reports that nothing has moved. This takes longer than the arrival
// of a cache line from a peer, and much less time than a time slice of a process that shares the core.
constexpr int kLooks = 16;
// How many stops of a coroutine one test may pass; each is followed by the work of at most one piece.
constexpr int kStops = 2;

inline Progress advance(const Coroutine& work) {
  for (int stops = 0; stops < kStops; ++stops) {
    for (int looks = 0; !work.can_resume(); ++looks) {
      if (looks == kLooks) return stops > 0 ? Progress::kMoved : Progress::kWaiting;
    }
    work.resume();
    if (work.done()) return Progress::kComplete;
  }
  return Progress::kMoved;
}

// Advances the work of a request, and watches the peer that it waits for: a peer that has ended, or has destroyed the
// group, sends nothing more.
class Advance {
 public:
  // Throws TransportError, the same on all ranks, if a rank has failed, has ended or has left the group.
  Progress operator()(Channel& channel, const Coroutine& work) {
    try {
      const Progress progress = advance(work);
      if (progress == Progress::kWaiting) {
        look(channel, work);
      } else {
        watch_.moved();
      }
      return progress;
    } catch (const TransportError& error) {
      channel.fail(error.what());
      channel.check_failed();
      throw;
    }
  }

 private:
  void look(Channel& channel, const Coroutine& work) {
    channel.check_failed();
    if (!watch_.due()) return;
    const int rank = work.awaited_rank();
    if (rank < 0 || channel.has(rank) || work.can_resume()) return;
    throw TransportError("rank " + std::to_string(rank) + " has ended or has left the group; look at its output");
  }

  Watch watch_;
};

class CollectiveRequest final : public Request {
 public:
  CollectiveRequest(Channel& channel, Signature signature, std::vector<size_t> counts, Coroutine work)
      : channel_(channel),
        turn_(channel.turns.given++),
        signature_(signature),
        counts_(std::move(counts)),
        work_(std::move(work)) {}

  bool has_turn() const { return channel_.turns.done == turn_; }

  Progress test() override {
    if (!has_turn()) return Progress::kWaiting;
    channel_.begin(signature_, counts_.empty() ? nullptr : counts_.data());
    const Progress progress = advance_(channel_, work_);
    if (progress == Progress::kComplete) ++channel_.turns.done;
    return progress;
  }

 private:
  Channel& channel_;
  uint64_t turn_;
  Signature signature_;
  std::vector<size_t> counts_;
  Coroutine work_;
  Advance advance_;
};

class MessageRequest final : public Request {
 public:
  MessageRequest(Channel& channel, Coroutine work) : channel_(channel), work_(std::move(work)) {}
  Progress test() override { return advance_(channel_, work_); }

 private:
  Channel& channel_;
  Coroutine work_;
  Advance advance_;
};

}  // namespace cpudist::shared_memory
