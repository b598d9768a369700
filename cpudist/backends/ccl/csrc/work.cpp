#include "work.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "engine.hpp"

namespace cpudist {

AsyncWork::AsyncWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type, const char* profiling_title,
                     std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs)
    : Work(call.rank, type, profiling_title, std::move(inputs)),
      endpoint_(std::move(endpoint)),
      call_(std::move(call)),
      started_(Clock::now()),
      deadline_(started_ + call_.timeout),
      outputs_(std::move(outputs)) {}

void AsyncWork::as_caller(const std::function<void()>& copy) {
  try {
    const at::ThreadLocalStateGuard modes(*caller_);
    const at::NoGradGuard no_grad;
    copy();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void AsyncWork::end(std::exception_ptr error) {
  error_ = std::move(error);
  done_.store(true, std::memory_order_release);
}

void AsyncWork::announce() {
  if (completed_) {
    release();
    caller_.reset();
  }
  endpoint_.reset();
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  if (future_) complete(*future_);
}

void AsyncWork::complete(c10::ivalue::Future& future) const {
  if (error_) {
    future.setErrorIfNeeded(error_);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

bool AsyncWork::wait(Milliseconds timeout) {
  Engine::get().wait(*this, timeout);
  if (future_) {  // completed by a thread of the engine
    const WithoutGil without_gil;
    future_->wait();
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

bool AsyncWork::isCompleted() {
  if (!done()) Engine::get().poll(this);
  return done() && (!future_ || future_->completed());
}

bool AsyncWork::isSuccess() const { return done() && !error_; }

std::exception_ptr AsyncWork::exception() const { return done() ? error_ : nullptr; }

c10::intrusive_ptr<c10::ivalue::Future> AsyncWork::getFuture() { return Engine::get().future_of(*this); }

}  // namespace cpudist
