// A call in which each rank has the counts from its own caller.
#pragma once

#include <functional>
#include <string>

#include "../agreement.hpp"
#include "pieces.hpp"

namespace cpudist::oneccl {

// Compares the counts before the call starts, so that all ranks fail alike where they differ. MPI would write garbage,
// or wait for ever. Ranks gather the number of their own elements and a hash of all counts; where these differ, also
// the counts, for the message.
class Agreement final : public Request {
 public:
  Agreement(Communicator& communicator, const char* name, std::vector<size_t> counts,
            const std::function<RequestPtr()>& call)
      : communicator_(communicator), name_(name), counts_(std::move(counts)) {
    communicator_.order.push_back(this);
    call_ = call();  // next in the order
  }

  Progress test() override {
    if (stage_ == Stage::kAgreed) return call_->test();
    if (stage_ == Stage::kQueued) {
      if (!communicator_.may_issue(this)) return Progress::kWaiting;
      gather(Stage::kComparing, {counts_[static_cast<size_t>(communicator_.rank())], hash_of(counts_)});
    }
    if (!communicator_.complete(*gathering_)) return Progress::kWaiting;
    if (stage_ == Stage::kNaming) fail_by_counts(name_, gathered_, counts_.size());
    if (counts_agree(gathered_)) {
      stage_ = Stage::kAgreed;
      communicator_.order.pop_front();
    } else {
      gather(Stage::kNaming, counts_);
    }
    return Progress::kMoved;
  }

 private:
  using Numbers = std::vector<size_t>;

  enum class Stage : uint8_t { kQueued, kComparing, kNaming, kAgreed };

  // Gathers as many numbers from every rank.
  void gather(Stage stage, Numbers own) {
    stage_ = stage;
    own_ = std::move(own);
    gathered_.resize(own_.size() * counts_.size());
    const ccl::vector_class<size_t> lengths(counts_.size(), own_.size());
    gathering_ = communicator_.issue(ccl::allgatherv(own_.data(), own_.size(), gathered_.data(), lengths,
                                                     ccl::datatype::uint64, communicator_.raw()));
  }

  Communicator& communicator_;
  const char* const name_;
  const Numbers counts_;
  RequestPtr call_;
  Stage stage_ = Stage::kQueued;
  std::optional<ccl::event> gathering_;
  Numbers own_;
  Numbers gathered_;
};

}  // namespace cpudist::oneccl
