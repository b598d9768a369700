// PyTorch's completion hooks: functions of the user's that are told of each work once it is complete.
//
// They run one at a time, in the order in which works were completed, in a thread of their own: a hook in Python takes
// the GIL and may take long, and neither the engine nor whoever waits for a work is to wait for it. (In the main thread
// a hook would also swallow KeyboardInterrupt, for torch turns all that it raises into a plain error.)
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
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  // Starts the thread. Calling it again changes nothing.
  void start();

  // Calls the hook of the work's group with the work, soon. The engine calls this with its lock held.
  void tell(const AsyncWork& work);

  // Waits until all that has been told so far has been heard; false: not within `limit`.
  bool wait(Milliseconds limit);

  // Ends the thread, at interpreter exit; waits at most `limit` for hooks that are still to run.
  void close(Milliseconds limit);

 private:
  struct Told {
    Call call;  // whose group has the hook
    std::shared_ptr<c10d::WorkInfo> info;
  };

  void run();
  void hear(const Told& told);

  std::mutex mutex_;  // guards all below; no hook is called with it
  std::condition_variable changed_;
  std::deque<Told> queue_;
  uint64_t told_ = 0;
  uint64_t heard_ = 0;
  bool closed_ = false;
  std::thread thread_;
  bool warned_ = false;  // the thread's own
};

}  // namespace cpudist
