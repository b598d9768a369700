// A c10d call in flight, which is also the Work that the caller holds.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include <ATen/ThreadLocalState.h>

#include "call.hpp"

namespace cpudist {

class Endpoint;

class AsyncWork : public c10d::Work {
 public:
  AsyncWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type, const char* profiling_title,
            std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs);

  // Passes the work to its transport. Called once. An exception is an error of the caller, and nothing has been sent.
  virtual void start() = 0;

  // Advances the work without waiting. Not called again after kComplete. An error of this work alone goes into
  // failure_; an exception means that the transport has failed. The engine calls start() and advance() with its lock
  // held: they must not wait.
  virtual Progress advance() = 0;

  const Call& call() const { return call_; }
  Clock::time_point started() const { return started_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Whether the deadline has passed. Never true for a disconnect (UNKNOWN), because no thread waits for it.
  bool overdue(Clock::time_point now) const { return now > deadline_ && retrieveOpType() != c10d::OpType::UNKNOWN; }

  // Releases buffers and all else that the finished work no longer needs, because the caller may keep the work for
  // long. The engine calls release() without holding its lock, because freeing a tensor may need the GIL.
  virtual void release() {}

  // Called by the engine only: end() once, with its lock held; announce() afterwards and without the lock, because the
  // callbacks of a future may need the GIL or wait for other works.
  void end(std::exception_ptr error);
  void end() {
    completed_ = true;
    end(failure_);
  }
  void announce();
  void complete(c10::ivalue::Future& future) const;

  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return call_.sequence; }

 protected:
  // Runs `copy`, which fills the caller's tensors, in the caller's modes (such as inference_mode) and without
  // gradients. An exception in it fails this work only, because the transport has completed its calls.
  void as_caller(const std::function<void()>& copy);

  std::shared_ptr<Endpoint> endpoint_;  // released on completion, because the caller may keep the work
  std::exception_ptr failure_;
  std::optional<at::ThreadLocalState> caller_;  // the caller's modes, in which another thread may copy results

 private:
  friend class Engine;
  Call call_;
  Clock::time_point started_;
  Clock::time_point deadline_;  // guarded by the engine's lock; wait() moves it to a later time
  bool completed_ = false;      // false if the work was abandoned; written before done_
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // written before done_
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // created on request with the engine's lock held, never after end()
};

using AsyncWorkPtr = c10::intrusive_ptr<AsyncWork>;

}  // namespace cpudist
