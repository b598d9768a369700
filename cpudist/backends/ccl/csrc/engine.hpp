// The progress engine: all calls of a process into its transports go through it.
//
// Transports have no threads: messages move only while a thread polls. The engine keeps the works in flight and lets
// one thread at a time advance all of them: a thread that waits for a work or asks whether a work is complete, or a
// thread of the engine. The engine's thread polls while works are in flight and no other thread waits for a work. Where
// a rank has no core to spare, it sleeps between polls, because it would take the core from the computing threads. This
// is enough for peers that wait while this rank loads data or saves a file, and for a network, where the kernel sends.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "fair_mutex.hpp"
#include "gil.hpp"
#include "work.hpp"

namespace cpudist {

// A call in flight.
struct PendingCall {
  Call call;
  size_t bytes;                    // of the tensors that receive the result
  std::optional<at::Tensor> like;  // the first of them: its type and shape are reported
  double seconds;                  // since it was called

  PendingCall(AsyncWork& work, Clock::time_point now);
};

// This rank's communication at one moment.
struct Snapshot {
  std::vector<PendingCall> pending;  // oldest first; after a failure the calls that failed with it
  std::vector<GroupState> groups;    // with the collective that each completed last
};

class Engine {
 public:
  static Engine& get();

  // Starts the engine's thread. `polls`: this rank has a core to spare for the thread. `nap`: the thread's sleep
  // between two polls if it has no such core and no work has a future. Later calls have no effect.
  void start_thread(bool polls, Milliseconds nap);
  bool polls() const { return polls_.load(std::memory_order_relaxed); }

  // Starts a work. `background`: the caller does not wait for it at once. Throws the errors of the work's start(), and
  // DistBackendError after communication has failed.
  void submit(const AsyncWorkPtr& work, bool background);

  // Advances all works until this one is done. kNoTimeout: the work's own timeout.
  void wait(AsyncWork& work, Milliseconds timeout);

  // Advances all works by one step. If `work` has missed its deadline, all works in flight fail.
  void poll(AsyncWork* work = nullptr);

  // Returns a future that completes with the work. A future's own wait() does not poll: the engine's thread does. If
  // that thread sleeps between polls, this function polls for a while during a backward pass (DDP), see kPatience.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(AsyncWork& work);

  // Runs a function that blocks inside a transport (creating or freeing one) while no other thread uses transports.
  template <typename Function>
  auto exclusively(Function&& function) {
    const WithoutGil without_gil;
    const Lock lock(mutex_);
    check_usable();
    return function();
  }

  // The same for a function that returns whether it did its work. Returns false if transports are out of use.
  template <typename Function>
  bool exclusively_if_usable(Function&& function) {
    const WithoutGil without_gil;
    const Lock lock(mutex_);
    return usable() && function();
  }

  // Completes the works in flight, because peers may wait for them. Gives up after `limit`, because a peer may never
  // receive a message; kNoTimeout: each work's own timeout.
  void drain(Milliseconds limit);

  // Has an effect only if the group has works in flight: then fails all works of this process and takes communication
  // out of use, because a transport cannot cancel a call.
  void abort(const GroupState& group);

  // Called at interpreter exit: no call enters a transport afterwards, and no buffer that a transport uses is released.
  void close();

  // False after a timeout, a transport's error, abort(), close() or fork(). Transports are not used or freed then.
  bool usable() const { return !out_of_use_.load(std::memory_order_acquire); }

  // Adds a group to the snapshots until it is destroyed.
  void add(const std::shared_ptr<GroupState>& group);

  // Returns what this rank is communicating, or nothing if a call, such as the creation of a group, blocks inside a
  // transport for longer than `limit`.
  std::optional<Snapshot> snapshot(Milliseconds limit);

  // Returns the seconds that threads of this process have spent waiting for works.
  double blocked_seconds() const { return static_cast<double>(blocked_ns_.load()) * 1e-9; }

 private:
  using Lock = std::unique_lock<FairMutex>;
  using Works = std::list<AsyncWorkPtr>;
  using Finished = std::vector<AsyncWorkPtr>;

  static void after_fork_in_child();
  void check_usable() const;
  bool progress(Finished& finished) { return progress_from(in_flight_.begin(), finished); }
  bool progress_from(Works::iterator it, Finished& finished);
  void poll_until_done(Lock& lock, const AsyncWork& work, Clock::time_point deadline, Finished& finished);
  static void yield(Lock& lock);
  void sleep_until_done(Lock& lock, const AsyncWork& work, Clock::time_point deadline);
  template <typename Condition>
  void poll_while(Condition goes_on);
  void announce(Lock& lock, Finished& finished);
  void expire(AsyncWork& work, Clock::time_point since, Finished& finished);
  void expire_overdue(Finished& finished);
  void abandon_all(const std::string& reason, Finished& finished);
  void call_thread();
  void add_thread();
  void run();
  void poll_until_finished(Lock& lock, Finished& finished);
  bool any_future() const {
    return std::any_of(in_flight_.begin(), in_flight_.end(), [](const auto& work) { return work->future_.defined(); });
  }
  bool needs_thread() const {
    return !with_future_.empty() || (usable() && !in_flight_.empty() && waiting_ == 0 && !thread_polls_);
  }

  FairMutex mutex_;  // guards the transports and all members below
  Works in_flight_;
  Works with_future_;  // done, and to be announced by a thread of the engine
  Works abandoned_;    // never freed, because transports may still write to their buffers
  std::vector<std::weak_ptr<GroupState>> groups_;
  std::string reason_;
  std::atomic<bool> out_of_use_{false};
  std::atomic<int64_t> blocked_ns_{0};

  // Number of threads that wait. The last one to enter wait() polls, so that the engine's thread need not. The others
  // sleep until their work is done or no thread polls: threads that poll by turns would take the core from each other.
  int waiting_ = 0;
  int sleepers_ = 0;
  int handing_over_ = 0;  // threads that yield the core to the waiters of works that they have completed
  static inline const std::thread::id kNobody;
  std::thread::id poller_ = kNobody;
  std::thread::id last_poller_ = kNobody;
  Clock::time_point shared_until_{};  // until then the thread that polls yields, see kShared
  std::condition_variable_any turn_;

  // The engine's threads. One of them polls; there are more while callbacks of futures block the others.
  std::atomic<bool> polls_{false};
  Milliseconds nap_{};
  bool started_ = false;
  bool thread_polls_ = false;
  int idle_threads_ = 0;
  bool hurry_ = false;  // a work has got a future since the thread fell asleep
  std::condition_variable_any wake_;
  std::list<std::thread> threads_;
};

}  // namespace cpudist
