// Collectives in pieces, each of which is a coroutine. All pieces of a group start in the same order on all ranks.
#pragma once

#include <deque>
#include <limits>
#include <list>
#include <set>

#include "coroutine.hpp"

namespace cpudist {

// The order in which a group's calls start (each piece is a call), and the calls that are in flight.
class CallOrder {
 public:
  // At most `most` calls are in flight. Call n starts only when call n - `span` and all calls before it are complete.
  explicit CallOrder(size_t most, uint64_t span = std::numeric_limits<uint64_t>::max()) : most_(most), span_(span) {}

  // No call starts between hold() and release(), because the call that started last has more messages to start.
  void hold() { held_ = true; }
  void release() { held_ = false; }

 private:
  friend class Pieces;

  bool may_start(const Request* request) const {
    const bool in_span = running_.empty() || started_ - *running_.begin() < span_;
    return !held_ && in_span && running_.size() < most_ && requests_.front() == request;
  }
  uint64_t start() {
    running_.insert(started_);
    return started_++;
  }

  size_t most_;
  uint64_t span_;
  uint64_t started_ = 0;
  std::set<uint64_t> running_;
  std::deque<const Request*> requests_;  // that still have calls to start, oldest first
  bool held_ = false;
};

// A coroutine as a request.
class Task final : public Request {
 public:
  explicit Task(Coroutine work) : work_(std::move(work)) {}

  Progress test() override {
    if (!work_.can_resume()) return Progress::kWaiting;
    work_.resume();
    return work_.done() ? Progress::kComplete : Progress::kMoved;
  }

 private:
  Coroutine work_;
};

// A collective in pieces; start(piece, number) begins a piece, which is the call of this number in the group.
class Pieces final : public Request {
 public:
  using Start = std::function<Coroutine(size_t piece, uint64_t number)>;

  Pieces(CallOrder& order, size_t pieces, Start start) : order_(order), pieces_(pieces), start_(std::move(start)) {
    if (pieces_ > 0) order_.requests_.push_back(this);
  }

  Progress test() override {
    while (started_ < pieces_ && order_.may_start(this)) {
      const auto number = order_.start();
      running_.push_back({number, Task(start_(started_, number))});
      if (++started_ == pieces_) order_.requests_.pop_front();
    }
    bool moved = false;
    std::erase_if(running_, [&](Piece& piece) {
      const auto progress = piece.task.test();
      moved = moved || progress != Progress::kWaiting;
      if (progress == Progress::kComplete) order_.running_.erase(piece.number);
      return progress == Progress::kComplete;
    });
    if (started_ == pieces_ && running_.empty()) return Progress::kComplete;
    return moved ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  struct Piece {
    uint64_t number;
    Task task;
  };

  CallOrder& order_;
  const size_t pieces_;
  const Start start_;
  size_t started_ = 0;
  std::list<Piece> running_;  // oldest first
};

}  // namespace cpudist
