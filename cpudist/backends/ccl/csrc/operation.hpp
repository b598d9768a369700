// One c10d call on its way through oneCCL, and the Work handle that the caller holds: they are one object.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace cpudist {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Who calls: what an error message needs to name the operation.
struct Call {
  const char* name;  // c10d's name of the operation, "all_reduce"
  uint64_t sequence;
  int rank;
  int size;
  std::shared_ptr<const std::string> group;
  Milliseconds timeout;

  std::string describe() const;
};

class Operation : public c10d::Work {
 public:
  Operation(Call call, c10d::OpType type, const char* profiling_title, std::vector<at::Tensor> inputs,
            std::vector<at::Tensor> outputs);

  // Moves on as far as it can without blocking; true once everything is done. The engine calls it with its lock
  // held, so nothing in it may wait or take Python's GIL. An exception from here ends the use of oneCCL; what
  // concerns this operation alone goes into failure_.
  virtual bool advance() = 0;

  const Call& call() const { return call_; }
  Clock::time_point started() const { return started_; }
  bool done() const { return done_.load(std::memory_order_acquire); }

  // The engine alone calls these: end() once, under its lock; announce() after that and without the lock, because
  // a future's callbacks may need the GIL.
  void end(std::exception_ptr error);
  void end() { end(failure_); }
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
  std::exception_ptr failure_;

 private:
  friend class Engine;
  Call call_;
  Clock::time_point started_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // written before done_
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made on demand under the engine's lock, never after end()
};

using OperationPtr = c10::intrusive_ptr<Operation>;

}  // namespace cpudist
