// Requests that consist of oneCCL calls.
#pragma once

#include <algorithm>
#include <optional>

#include "communicator.hpp"

namespace cpudist::oneccl {

// The start of these parts if they are contiguous in memory.
template <typename Pointer>
std::optional<Pointer> flat(const std::vector<Pointer>& parts, const std::vector<size_t>& counts, size_t width) {
  Pointer begin = nullptr;
  const char* next = nullptr;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (!begin) {
      begin = parts[i];
    } else if (parts[i] != next) {
      return std::nullopt;
    }
    next = static_cast<const char*>(parts[i]) + counts[i] * width;
  }
  return begin;
}

// A oneCCL call in flight, and the memory that only it needs.
struct Issued {
  Issued(ccl::event call, Scratch memory = {}) : event(std::move(call)), scratch(std::move(memory)) {}

  ccl::event event;
  Scratch scratch;
};

// A large message is 4 to 5 times slower in one call than in pieces of this size.
constexpr size_t kPieceBytes = size_t{4} << 20;

// A collective as one or more oneCCL calls, piece by piece.
//
// issue(offset, length) starts the call for that part of the elements; finish(offset, length, scratch) post-processes its
// results.
template <typename Issue, typename Finish>
class Pieces final : public Request {
 public:
  Pieces(Communicator& communicator, size_t count, size_t most, Issue issue, Finish finish)
      : communicator_(communicator), count_(count), most_(most), issue_(std::move(issue)), finish_(std::move(finish)) {
    if (count_ > 0) communicator_.order.push_back(this);
  }

  Progress test() override {
    bool moved = false;
    while (completed_ < count_) {
      while (issued_ < count_ && communicator_.may_issue(this)) {
        issue_next();
        moved = true;
      }
      if (first_ == calls_.size() || !communicator_.complete(calls_[first_].event)) {
        return moved ? Progress::kMoved : Progress::kWaiting;
      }
      finish_first();
      moved = true;
    }
    return Progress::kComplete;
  }

 private:
  size_t length(size_t offset) const { return std::min(most_, count_ - offset); }

  void issue_next() {
    Issued call = issue_(issued_, length(issued_));
    call.event = communicator_.issue(std::move(call.event));
    calls_.push_back(std::move(call));
    issued_ += length(issued_);
    if (issued_ == count_) communicator_.order.pop_front();
  }

  void finish_first() {
    auto& call = calls_[first_++];
    finish_(completed_, length(completed_), call.scratch.get());
    call.scratch.reset();
    completed_ += length(completed_);
  }

  Communicator& communicator_;
  const size_t count_;  // elements
  const size_t most_;   // elements of a piece
  size_t issued_ = 0;
  size_t completed_ = 0;
  Issue issue_;
  Finish finish_;
  std::vector<Issued> calls_;
  size_t first_ = 0;  // the oldest in flight
};

// A message as calls of a size that MPI can count in 32 bits. Each starts when the one before is complete, because
// oneCCL does not keep the order of sends that are in flight together.
template <typename Issue>
class PointToPoint final : public Request {
 public:
  PointToPoint(size_t bytes, size_t most, Issue issue) : bytes_(bytes), most_(most), issue_(std::move(issue)) {}

  Progress test() override {
    for (bool moved = false;; moved = true) {
      if (call_ && !call_->test()) return moved ? Progress::kMoved : Progress::kWaiting;
      if (done_ == bytes_) return Progress::kComplete;
      const size_t piece = std::min(bytes_ - done_, most_);
      call_ = issue_(done_, piece);
      done_ += piece;
    }
  }

 private:
  const size_t bytes_;
  const size_t most_;  // of a call
  size_t done_ = 0;
  Issue issue_;
  std::optional<ccl::event> call_;
};

// Several requests as one.
class Several final : public Request {
 public:
  explicit Several(std::vector<RequestPtr> requests) : requests_(std::move(requests)) {}

  Progress test() override { return test_all(requests_); }

 private:
  std::vector<RequestPtr> requests_;
};

}  // namespace cpudist::oneccl
