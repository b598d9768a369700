// The progress engine: the process's one way into its transports.
//
// Transports have no threads: messages move only while somebody polls. The engine keeps the works under way and lets
// one thread at a time move all of them on: whoever waits, whoever asks whether something is complete, and a thread of
// its own. Where a rank has a core to spare, that thread polls all the time. Elsewhere it would steal the core that
// computes, so it naps, and polls only what nobody else has moved meanwhile: enough for peers that wait for this rank
// while it loads data, saves a file or waits for something else; and for a network, where the kernel sends meanwhile.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "calls.hpp"
#include "completion_hooks.hpp"

namespace cpudist {

class Engine {
 public:
  static Engine& get();

  // Starts the thread. `polls`: this rank has a core to spare for it. Calling it again changes nothing.
  void start_thread(bool polls);
  bool polls() const { return polls_.load(std::memory_order_relaxed); }

  // Starts a work. `background`: nobody is about to wait for it. Throws what the work's start() throws, and
  // DistBackendError when communication is out of use.
  void submit(const AsyncWorkPtr& work, bool background);

  // Moves everything on until the work is done. kNoTimeout: the limit that the work carries.
  void wait(AsyncWork& work, Milliseconds timeout);

  // Moves everything on by one step.
  void poll();

  // A future that completes with the work. Its own wait() moves nothing, so inside a machine, without a polling thread,
  // this waits for the work first; across machines the thread that naps is enough.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(AsyncWork& work);

  // Runs a call that blocks inside a transport (creating one, freeing one) with nobody else in any.
  template <typename Function>
  auto exclusively(Function&& function) {
    std::lock_guard<std::mutex> lock(mutex_);
    check_usable();
    return function();
  }

  // The same for a function that returns whether it has done its work; false where transports are out of use.
  template <typename Function>
  bool exclusively_if_usable(Function&& function) {
    std::lock_guard<std::mutex> lock(mutex_);
    return usable() && function();
  }

  // Finishes what nobody has waited for, as peers may. Gives up after `limit`, for a message may never be asked for;
  // kNoTimeout: the limit that each work carries.
  void drain(Milliseconds limit);

  // From now on `hook` is told of each work of the group that completes without an error.
  void set_hook(CallGroup& group, std::shared_ptr<const CompletionHooks::Hook> hook);

  // Waits for the works of the group that are under way, and until its hook has been told of all.
  void wait_for_all(const CallGroup& group, Milliseconds timeout);

  // Gives up what is under way in the group. A transport cannot take back what it has begun, so if there is anything,
  // communication is out of use in this process.
  void abort(const CallGroup& group);

  // From here on no call enters a transport and nothing that it may still touch is released (at interpreter exit).
  void close();

  // False after a timeout, an error inside a transport, close() or fork(): transports are then left alone, not freed.
  bool usable() const { return !out_of_use_.load(std::memory_order_acquire); }

  // A group whose calls are to be known; forgotten when it goes.
  void add(const std::shared_ptr<CallGroup>& group);

  // What this rank is doing. Empty when a call blocks inside a transport for longer than `limit`: a group is being made.
  std::optional<Calls> calls(Milliseconds limit);

  // Seconds that threads of this process have been blocked in wait().
  double blocked_seconds() const { return static_cast<double>(blocked_ns_.load()) * 1e-9; }

 private:
  using Finished = std::vector<AsyncWorkPtr>;
  using Lock = std::unique_lock<std::mutex>;

  static void after_fork_in_child();
  void check_usable() const;
  bool progress(Finished& finished);
  void complete(AsyncWork& work);
  void announce(Lock& lock, Finished& finished);
  void expire(AsyncWork& work, Clock::duration waited, Finished& finished);
  void expire_late(Finished& finished);
  void abandon_all(const std::string& reason, Finished& finished);
  void call_thread();
  void add_thread();
  void run();
  void poll_until_finished(Lock& lock, Finished& finished);
  // Whether somebody has a future of one of these works.
  template <typename Works>
  static bool any_future(const Works& works) {
    return std::any_of(works.begin(), works.end(), [](const auto& work) { return work->future_.defined(); });
  }
  bool needs_thread() const { return !in_flight_.empty() && waiting_ == 0 && !thread_polls_; }

  std::mutex mutex_;  // guards the transports and all below
  std::list<AsyncWorkPtr> in_flight_;
  std::list<AsyncWorkPtr> abandoned_;  // transports may still write to their buffers: never freed
  std::vector<std::weak_ptr<CallGroup>> groups_;
  CompletionHooks hooks_;
  std::string reason_;
  std::atomic<bool> out_of_use_{false};
  std::atomic<int64_t> blocked_ns_{0};
  int waiting_ = 0;  // threads in wait(), which poll: the engine's own need not

  // The engine's threads. One of them polls; more than one exist while callbacks of futures block the others.
  std::atomic<bool> polls_{false};
  bool started_ = false;
  bool thread_polls_ = false;
  int idle_threads_ = 0;
  std::condition_variable wake_;
  std::list<std::thread> threads_;
};

}  // namespace cpudist
