// The process's one way into oneCCL.
//
// oneCCL has no thread of its own here (CCL_WORKER_OFFLOAD=0): it moves only while somebody polls an event. The engine
// keeps the operations in flight and lets one thread at a time move all of them on: whoever waits, whoever asks for a
// future, and, where a core is left over, a thread of its own. A thread that polls would steal the core of a rank that
// computes on all it has.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "operation.hpp"

namespace cpudist {

class Engine {
 public:
  static Engine& get();

  // Starts the thread that moves operations on while the caller computes.
  void start_thread();
  bool has_thread() const { return thread_.joinable(); }

  // Starts an operation. `background`: nobody is about to wait for it. Throws when oneCCL is out of use.
  void submit(const OperationPtr& operation, bool background);

  // Moves everything on until the operation is done. kNoTimeout: the limit that the operation carries.
  void drive(Operation& operation, Milliseconds timeout);

  // Moves everything on by one step.
  void tick();

  // A future that completes with the operation; without an engine thread this drives it to its end first, because a
  // future's wait() would not.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(Operation& operation);

  // Runs a call that blocks inside oneCCL (creating a communicator) with nobody else in it.
  template <typename Function>
  auto exclusively(Function&& function) {
    std::lock_guard<std::mutex> lock(mutex_);
    check_usable();
    return function();
  }

  // Finishes what nobody has waited for, as peers may; gives up after `limit`, for a message may never come.
  void drain(Milliseconds limit);

  // From here on no call enters oneCCL and nothing that it may still touch is released (at interpreter exit).
  void close();

  // False after a timeout, an error inside oneCCL or close(): communicators are then left alone, not freed.
  bool usable() const { return !out_of_use_.load(std::memory_order_acquire); }

  // Seconds that threads of this process have been blocked in drive().
  double blocked_seconds() const { return static_cast<double>(blocked_ns_.load()) * 1e-9; }

 private:
  using Finished = std::vector<OperationPtr>;

  void check_usable() const;
  void progress(Finished& finished);
  void expire(Operation& operation, Clock::duration waited);
  void abandon_all(const std::string& reason, Finished& finished);
  void run();

  std::mutex mutex_;  // guards oneCCL and all below
  std::list<OperationPtr> in_flight_;
  std::list<OperationPtr> abandoned_;  // oneCCL may still write to their buffers: never freed
  std::string reason_;
  std::atomic<bool> out_of_use_{false};
  std::atomic<int> drivers_{0};  // threads in drive(): the engine thread leaves the work to them
  std::atomic<int64_t> blocked_ns_{0};
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace cpudist
