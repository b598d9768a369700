#include "operation.hpp"

#include "engine.hpp"

namespace cpudist {

std::string Call::describe() const {
  std::string text = std::string(name) + " #" + std::to_string(sequence);
  if (!group->empty()) text += " of group '" + *group + "'";
  return text + " on rank " + std::to_string(rank) + " of " + std::to_string(size);
}

Operation::Operation(Call call, c10d::OpType type, const char* profiling_title, std::vector<at::Tensor> inputs,
                     std::vector<at::Tensor> outputs)
    : Work(call.rank, type, profiling_title, inputs),
      call_(std::move(call)),
      started_(Clock::now()),
      outputs_(std::move(outputs)) {}

void Operation::end(std::exception_ptr error) {
  error_ = std::move(error);
  done_.store(true, std::memory_order_release);
}

void Operation::announce() {
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  if (future_) complete(*future_);
}

void Operation::complete(c10::ivalue::Future& future) const {
  if (error_) {
    future.setErrorIfNeeded(error_);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

bool Operation::wait(Milliseconds timeout) {
  Engine::get().drive(*this, timeout);
  if (error_) std::rethrow_exception(error_);
  return true;
}

bool Operation::isCompleted() {
  if (!done()) Engine::get().tick();
  return done();
}

bool Operation::isSuccess() const { return done() && !error_; }

std::exception_ptr Operation::exception() const { return done() ? error_ : nullptr; }

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() { return Engine::get().future_of(*this); }

}  // namespace cpudist
