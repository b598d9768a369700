#include "disconnect.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace cpudist {

namespace {

// Follows each rank's flags, to detect a peer that makes another collective, which oneCCL matches with this one.
constexpr char kMark[] = "left";

// Ends the process: the other rank has a wrong result, and no caller waits for this work.
[[noreturn]] void end_because_not_left(const Call& call, size_t rank) {
  std::fprintf(stderr,
               "cpudist: rank %d has left the group (destroy_process_group), but rank %zu makes another call; let all "
               "ranks make the same calls in one order; ending\n",
               call.rank, rank);
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

DisconnectWork::DisconnectWork(Call call, std::shared_ptr<Endpoint> endpoint)
    : AsyncWork(std::move(call), std::move(endpoint), c10d::OpType::UNKNOWN, nullptr, {}, {}),
      header_{kDisconnectTag, 0} {}

void DisconnectWork::start() {
  const auto size = static_cast<size_t>(call().size);
  const size_t length = size + sizeof kMark;
  flags_.resize(size * length);
  std::vector<void*> rows;
  for (size_t r = 0; r < size; ++r) rows.push_back(&flags_[r * length]);
  auto* own = static_cast<char*>(rows[call().rank]);
  for (int source = 0; source < call().size; ++source) own[source] = endpoint_->matcher().listens_to(source);
  std::memcpy(own + size, kMark, sizeof kMark);
  all_gather_ = endpoint_->transport().leave(own, std::move(rows), std::vector<size_t>(size, length));
}

Progress DisconnectWork::advance() {
  auto& matcher = endpoint_->matcher();
  if (all_gather_) {
    Progress progress;
    try {
      progress = all_gather_->test();
    } catch (const OtherCall& other) {
      end_because_not_left(call(), static_cast<size_t>(other.rank));
    }
    if (progress != Progress::kComplete) return progress;
    all_gather_.reset();
    const auto size = static_cast<size_t>(call().size);
    for (size_t r = 0; r < size; ++r) {
      const char* const flags = &flags_[r * (size + sizeof kMark)];
      if (std::memcmp(flags + size, kMark, sizeof kMark) != 0) end_because_not_left(call(), r);
      if (flags[call().rank]) listeners_.push_back(static_cast<int>(r));
    }
  }
  // The empty message to a listener follows all earlier messages to that rank.
  std::erase_if(listeners_, [&](int listener) {
    if (!matcher.senders(listener).empty()) return false;
    notices_.push_back(endpoint_->transport().send(&header_, sizeof header_, listener));
    return true;
  });
  std::erase_if(notices_, [](const RequestPtr& request) { return request->test() == Progress::kComplete; });
  matcher.progress();
  const bool complete = listeners_.empty() && notices_.empty() && !matcher.listening();
  return complete ? Progress::kComplete : Progress::kWaiting;
}

}  // namespace cpudist
