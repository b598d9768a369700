// An all-to-all as oneCCL calls.
#pragma once

#include <cstring>

#include "../agreement.hpp"
#include "pieces.hpp"

namespace cpudist::oneccl {

// First gathers every rank's counts, so that all ranks fail alike where a rank sends another number of elements than
// its peer expects; then exchanges the data in rounds, because MPI counts the bytes to a peer in 32 bits.
class Alltoall final : public Request {
 public:
  Alltoall(Communicator& communicator, std::vector<const void*> inputs, std::vector<size_t> input_counts,
           std::vector<void*> outputs, std::vector<size_t> output_counts, size_t width, ccl::datatype type)
      : communicator_(communicator),
        ranks_(inputs.size()),
        width_(width),
        type_(type),
        most_(std::max<size_t>(communicator.round_bytes() / width / ranks_, 1)),
        inputs_(std::move(inputs)),
        input_counts_(std::move(input_counts)),
        outputs_(std::move(outputs)),
        output_counts_(std::move(output_counts)),
        counts_(2 * ranks_ * ranks_) {
    communicator_.order.push_back(this);
  }

  Progress test() override {
    if (!call_) {
      if (!communicator_.may_issue(this)) return Progress::kWaiting;
      issue_counts();
    }
    for (bool moved = false;; moved = true) {
      if (!communicator_.complete(*call_)) return moved ? Progress::kMoved : Progress::kWaiting;
      if (rounds_ == 0) {
        check_counts();
      } else {
        unpack();
        if (++round_ == rounds_) return Progress::kComplete;
      }
      issue_round();
    }
  }

 private:
  void issue_counts() {
    auto* const own = &counts_[2 * ranks_ * static_cast<size_t>(communicator_.rank())];
    std::copy(input_counts_.begin(), input_counts_.end(), own);
    std::copy(output_counts_.begin(), output_counts_.end(), own + ranks_);
    const ccl::vector_class<size_t> lengths(ranks_, 2 * ranks_);
    call_ = communicator_.issue(
        ccl::allgatherv(own, 2 * ranks_, counts_.data(), lengths, ccl::datatype::uint64, communicator_.raw()));
  }

  void check_counts() {
    check_alltoall(counts_, ranks_, width_);
    size_t longest = 0;  // of all ranks
    for (size_t from = 0; from < ranks_; ++from) {
      const auto* const sent = &counts_[2 * ranks_ * from];
      longest = std::max(longest, *std::max_element(sent, sent + ranks_));
    }
    rounds_ = std::max<size_t>((longest + most_ - 1) / most_, 1);
  }

  void issue_round() {
    const auto sent = parts(input_counts_, round_ * most_, most_);
    const auto received = parts(output_counts_, round_ * most_, most_);
    const auto source = rounds_ == 1 ? flat(inputs_, input_counts_, width_) : std::nullopt;
    target_ = rounds_ == 1 ? flat(outputs_, output_counts_, width_) : std::nullopt;
    if (!source) {
      packed_ = allocate(sum(sent) * width_);
      auto* next = packed_.get();
      for (size_t r = 0; r < ranks_; ++r) {
        if (sent[r] == 0) continue;
        std::memcpy(next, static_cast<const char*>(inputs_[r]) + round_ * most_ * width_, sent[r] * width_);
        next += sent[r] * width_;
      }
    }
    if (!target_) received_ = allocate(sum(received) * width_);
    const void* from = source ? *source : packed_.get();
    void* to = target_ ? *target_ : received_.get();
    if (round_ + 1 == rounds_) communicator_.order.pop_front();
    call_ = communicator_.issue(ccl::alltoallv(from, sent, to, received, type_, communicator_.raw()));
  }

  void unpack() {
    if (target_) return;
    const auto* next = received_.get();
    for (size_t r = 0; r < ranks_; ++r) {
      const size_t bytes = part(output_counts_[r], round_ * most_, most_) * width_;
      if (bytes > 0) std::memcpy(static_cast<char*>(outputs_[r]) + round_ * most_ * width_, next, bytes);
      next += bytes;
    }
  }

  Communicator& communicator_;
  const size_t ranks_;
  const size_t width_;
  const ccl::datatype type_;
  const size_t most_;  // elements to one peer in a round
  const std::vector<const void*> inputs_;
  const std::vector<size_t> input_counts_;
  const std::vector<void*> outputs_;
  const std::vector<size_t> output_counts_;
  std::vector<size_t> counts_;  // of each rank: its counts to send to each, and to receive from each
  size_t rounds_ = 0;           // 0: the counts are still to come
  size_t round_ = 0;
  std::optional<ccl::event> call_;
  std::optional<void*> target_;  // where this round writes, if it needs no copy
  Scratch packed_;
  Scratch received_;
};

}  // namespace cpudist::oneccl
