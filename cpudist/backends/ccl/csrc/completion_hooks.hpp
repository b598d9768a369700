// PyTorch's completion hooks: functions of the user that are called with each completed work.
//
// They run one at a time, in the order in which works complete, in a thread of their own: a hook in Python takes the
// GIL and may take long, so neither the engine nor a thread that waits for a work may wait for it. (In the main thread
// a hook would also swallow KeyboardInterrupt, because torch turns whatever it raises into a plain error.)
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "work.hpp"

namespace cpudist {

class CompletionHooks {
 public:
  // Starts the thread. Later calls have no effect.
  void start();

  // Queues a call of the hook of the work's group. The engine calls this with its lock held.
  void enqueue(const AsyncWork& work);

  // Waits until all calls queued so far have returned; returns whether that was within `limit`.
  bool wait(Milliseconds limit);

  // Ends the thread at interpreter exit, after waiting at most `limit` for the queued calls.
  void close(Milliseconds limit);

 private:
  struct Completion {
    Call call;  // its group has the hook
    std::shared_ptr<c10d::WorkInfo> info;
  };

  void run();
  void call_hook(const Completion& completion);

  std::mutex mutex_;  // guards all members below; not held while a hook runs
  std::condition_variable changed_;
  std::deque<Completion> queue_;
  uint64_t queued_ = 0;
  uint64_t called_ = 0;
  bool closed_ = false;
  std::thread thread_;
  bool warned_ = false;  // used by the thread only
};

}  // namespace cpudist
