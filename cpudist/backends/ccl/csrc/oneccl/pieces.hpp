// Requests made of oneCCL calls.
#pragma once

#include <algorithm>

#include "communicator.hpp"

namespace cpudist::oneccl {

using Scratch = std::unique_ptr<char[]>;

inline Scratch allocate(size_t bytes) { return std::make_unique_for_overwrite<char[]>(bytes); }

// A call of oneCCL under way, and memory that only it needs.
struct Issued {
  Issued(ccl::event call, Scratch memory = {}) : event(std::move(call)), scratch(std::move(memory)) {}

  ccl::event event;
  Scratch scratch;
};

// A large message is 4 to 5 times slower as one call than in pieces (docs/performance.md).
constexpr size_t kPieceBytes = size_t{4} << 20;

// A collective as one or more calls of oneCCL, piece by piece.
//
// Issue(offset, length) starts the call for that part of the elements, Finish(offset, length) treats its results.
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
      if (first_ == calls_.size() || !calls_[first_].event.test()) return moved ? Progress::kMoved : Progress::kWaiting;
      complete_first();
      moved = true;
    }
    return Progress::kComplete;
  }

 private:
  size_t length(size_t offset) const { return std::min(most_, count_ - offset); }

  void issue_next() {
    calls_.push_back(issue_(issued_, length(issued_)));
    // Started here and now. oneCCL's queue changes its order when a call completes, and calls that it hands on to MPI
    // as they are meet their counterparts by the order in which they were started.
    if (communicator_.overlaps()) calls_.back().event.test();
    ++communicator_.under_way;
    issued_ += length(issued_);
    if (issued_ == count_) communicator_.order.pop_front();
  }

  void complete_first() {
    finish_(completed_, length(completed_));
    completed_ += length(completed_);
    calls_[first_++].scratch.reset();
    --communicator_.under_way;
  }

  Communicator& communicator_;
  const size_t count_;  // elements
  const size_t most_;   // elements of a piece
  size_t issued_ = 0;
  size_t completed_ = 0;
  Issue issue_;
  Finish finish_;
  std::vector<Issued> calls_;
  size_t first_ = 0;  // of those under way
};

// A message in calls of a size that MPI can count in 32 bits, each when the one before is complete: oneCCL does not
// keep the order of what is under way together.
template <typename Issue>
class Message final : public Request {
 public:
  Message(size_t bytes, Issue issue) : bytes_(bytes), issue_(std::move(issue)) {}

  Progress test() override {
    constexpr size_t kLargestPiece = size_t{1} << 30;
    for (bool moved = false;; moved = true) {
      if (call_ && !call_->test()) return moved ? Progress::kMoved : Progress::kWaiting;
      if (done_ == bytes_) return Progress::kComplete;
      const size_t piece = std::min(bytes_ - done_, kLargestPiece);
      call_ = issue_(done_, piece);
      done_ += piece;
    }
  }

 private:
  const size_t bytes_;
  size_t done_ = 0;
  Issue issue_;
  std::optional<ccl::event> call_;
};

// Several requests as one.
class Several final : public Request {
 public:
  explicit Several(std::vector<RequestPtr> requests) : requests_(std::move(requests)) {}

  Progress test() override {
    bool moved = false;
    for (auto& request : requests_) {
      const auto progress = request->test();
      moved = moved || progress != Progress::kWaiting;
      if (progress == Progress::kComplete) request.reset();
    }
    std::erase(requests_, nullptr);
    if (requests_.empty()) return Progress::kComplete;
    return moved ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  std::vector<RequestPtr> requests_;
};

}  // namespace cpudist::oneccl
