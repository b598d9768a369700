// One c10d call under way, and the Work handle that the caller holds: they are one object.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "transport.hpp"

namespace cpudist {

class Endpoint;

struct Call;

// A process group as its calls know it.
struct CallGroup {
  std::string name;
  bool across_machines = false;
  // The collective that was completed last, and its number; the engine's lock guards them.
  const char* last_name = nullptr;
  uint64_t last_sequence = 0;
  // Told of each work that is complete; set under the same lock. Shared, for it may be running while the group goes.
  std::shared_ptr<const std::function<void(std::shared_ptr<c10d::WorkInfo>)>> hook;

  void completed(const Call& call);
};

// Who calls: what an error message needs to name the operation.
struct Call {
  const char* name;         // c10d's name of the operation, "all_reduce"
  uint64_t sequence;        // among the group's collectives, so the same on all ranks; 0 for send and recv
  std::optional<int> peer;  // of send and recv: the other rank of the group, negative where it may be any
  int rank;
  int size;
  std::shared_ptr<CallGroup> group;
  Milliseconds timeout;

  std::string describe() const;
};

class AsyncWork : public c10d::Work {
 public:
  AsyncWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type, const char* profiling_title,
            std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs);

  // Hands the work to its transport. Called once; what it throws is the caller's error, and nothing has been sent.
  virtual void start() = 0;

  // Moves on as far as it goes without waiting. After kComplete it is not called again and holds no buffers any more.
  // What concerns this work alone goes into failure_; an exception from here means that the transport has failed.
  // The engine calls start() and advance() with its lock held: they must not wait, nor take Python's GIL.
  virtual Progress advance() = 0;

  const Call& call() const { return call_; }
  Clock::time_point started() const { return started_; }
  bool done() const { return done_.load(std::memory_order_acquire); }

  // The engine alone calls these: end() once, under its lock; announce() after that and without the lock, because
  // a future's callbacks may need the GIL, or wait for other works.
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
  std::shared_ptr<Endpoint> endpoint_;  // of the group; let go when all is done, as the caller may keep the handle
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

using AsyncWorkPtr = c10::intrusive_ptr<AsyncWork>;

}  // namespace cpudist
