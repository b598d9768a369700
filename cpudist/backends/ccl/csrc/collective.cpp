#include "collective.hpp"

#include <ATen/core/grad_mode.h>

namespace cpudist {

Collective::Collective(Call call, c10d::OpType type, const char* profiling_title, std::vector<at::Tensor> inputs,
                       std::vector<at::Tensor> outputs, std::shared_ptr<Communicator> communicator, Plan plan)
    : Operation(std::move(call), type, profiling_title, std::move(inputs), std::move(outputs)),
      communicator_(std::move(communicator)),
      plan_(std::move(plan)) {
  calls_.reserve(plan_.steps.size());
}

bool Collective::advance() {
  auto& turn = communicator_->turn;
  const size_t total = plan_.steps.size();
  if (!in_turn_ && total > 0) {
    in_turn_ = true;
    turn.push_back(this);
  }
  while (completed_ < total) {
    while (issued_ < total && communicator_->may_issue(this)) {
      calls_.push_back(plan_.steps[issued_++](communicator_->raw()));
      ++communicator_->under_way;
      if (issued_ == total) turn.pop_front();
    }
    if (completed_ == issued_ || !calls_[completed_].event.test()) return false;
    calls_[completed_++].scratch.reset();
    --communicator_->under_way;
  }
  const at::NoGradGuard no_grad;
  for (const auto& action : plan_.after) action();
  return true;
}

}  // namespace cpudist
