#include "schedule.hpp"

namespace cpudist {

CollectiveWork::CollectiveWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type,
                               const char* profiling_title, std::vector<at::Tensor> inputs,
                               std::vector<at::Tensor> outputs, Schedule schedule)
    : AsyncWork(std::move(call), std::move(endpoint), type, profiling_title, std::move(inputs), std::move(outputs)),
      schedule_(std::move(schedule)) {
  if (!schedule_.finish.empty()) caller_.emplace();
}

void CollectiveWork::start() {
  requests_.reserve(schedule_.calls.size());
  for (const auto& call : schedule_.calls) requests_.push_back(call(endpoint_->transport()));
}

Progress CollectiveWork::advance() {
  const auto progress = test_all(requests_);
  if (progress != Progress::kComplete) return progress;
  if (caller_) {
    as_caller([this] {
      for (const auto& action : schedule_.finish) action();
    });
  }
  return Progress::kComplete;
}

void CollectiveWork::release() {
  schedule_ = {};
  requests_.clear();
}

}  // namespace cpudist
