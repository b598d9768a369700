#include "disconnect.hpp"

#include <algorithm>

namespace cpudist {

DisconnectWork::DisconnectWork(Call call, std::shared_ptr<Endpoint> endpoint)
    : AsyncWork(std::move(call), std::move(endpoint), c10d::OpType::UNKNOWN, nullptr, {}, {}),
      header_{kDisconnectTag, 0} {}

void DisconnectWork::start() {
  const auto size = static_cast<size_t>(call().size);
  flags_.resize(size * size);
  std::vector<void*> rows;
  for (size_t r = 0; r < size; ++r) rows.push_back(&flags_[r * size]);
  auto* own = static_cast<char*>(rows[call().rank]);
  for (int source = 0; source < call().size; ++source) own[source] = endpoint_->matcher().listens_to(source);
  all_gather_ = endpoint_->transport().leave(own, std::move(rows), std::vector<size_t>(size, size));
}

Progress DisconnectWork::advance() {
  auto& matcher = endpoint_->matcher();
  if (all_gather_) {
    const auto progress = all_gather_->test();
    if (progress != Progress::kComplete) return progress;
    all_gather_.reset();
    for (int r = 0; r < call().size; ++r) {
      if (flags_[r * call().size + call().rank]) listeners_.push_back(r);
    }
  }
  // The last message follows the unsent ones to them.
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
