#include "completion_hooks.hpp"

#include <pthread.h>

#include <iostream>
#include <utility>

namespace cpudist {

void CompletionHooks::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable() || closed_) return;
  thread_ = std::thread(&CompletionHooks::run, this);
  pthread_setname_np(thread_.native_handle(), "cpudist-hooks");
}

void CompletionHooks::enqueue(const AsyncWork& work) {
  using ItsClock = decltype(c10d::WorkInfo::timeFinished)::clock;  // the system clock up to
                                                                   // torch 2.8
  const auto duration = Clock::now() - work.started();
  const auto now = ItsClock::now();
  auto info =
      std::make_shared<c10d::WorkInfo>(work.retrieveOpType(), work.getSequencenumber(), now - duration, now, duration);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    queue_.push_back({work.call(), std::move(info)});
    ++queued_;
  }
  changed_.notify_all();
}

bool CompletionHooks::wait(Milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, limit, [this, queued = queued_] { return called_ >= queued; });
}

void CompletionHooks::close(Milliseconds limit) {
  const bool idle = wait(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  if (!thread_.joinable()) return;
  changed_.notify_all();
  lock.unlock();
  if (idle) return thread_.join();
  std::cerr << "cpudist: warning: a completion hook does not return; ending "
               "without it\n"
            << std::flush;
  thread_.detach();
}

void CompletionHooks::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (closed_) return;
    {
      const auto completion = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      call_hook(completion);
    }
    lock.lock();
    ++called_;
    changed_.notify_all();
  }
}

// An error of a hook does not fail the work.
void CompletionHooks::call_hook(const Completion& completion) {
  try {
    (*completion.call.group->hook)(completion.info);
  } catch (const std::exception& error) {
    if (std::exchange(warned_, true)) return;
    const std::string text = error.what();  // of several lines, where Python raised it
    std::cerr << "cpudist: warning: the completion hook of " + completion.call.describe() +
                     " failed: " + text.substr(0, text.find('\n')) + " (later failures are not reported)\n"
              << std::flush;
  }
}

}  // namespace cpudist
