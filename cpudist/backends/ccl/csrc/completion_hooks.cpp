#include "completion_hooks.hpp"

#include <pthread.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <utility>

#include "engine.hpp"
#include "errors.hpp"

namespace cpudist {

void CompletionHooks::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable() || closed_) return;
  thread_ = std::thread(&CompletionHooks::run, this);
  pthread_setname_np(thread_.native_handle(), "cpudist-hooks");
}

void CompletionHooks::tell(const AsyncWork& work) {
  using ItsClock = decltype(c10d::WorkInfo::timeFinished)::clock;  // the system's up to torch 2.8
  const auto duration = Clock::now() - work.started();
  const auto now = ItsClock::now();
  auto info =
      std::make_shared<c10d::WorkInfo>(work.retrieveOpType(), work.getSequencenumber(), now - duration, now, duration);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    queue_.push_back({work.call(), std::move(info)});
    ++told_;
  }
  changed_.notify_all();
}

bool CompletionHooks::wait(Milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, limit, [this, told = told_] { return heard_ >= told; });
}

void CompletionHooks::close(Milliseconds limit) {
  const bool idle = wait(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  if (!thread_.joinable()) return;
  changed_.notify_all();
  lock.unlock();
  if (idle) return thread_.join();
  std::cerr << "cpudist: warning: a completion hook does not return; ending without it\n" << std::flush;
  thread_.detach();
}

void CompletionHooks::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (closed_) return;
    {
      const auto told = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      hear(told);
    }
    lock.lock();
    ++heard_;
    changed_.notify_all();
  }
}

// A hook only looks on: its errors are not those of the work.
void CompletionHooks::hear(const Told& told) {
  try {
    (*told.call.group->hook)(told.info);
  } catch (const std::exception& error) {
    if (std::exchange(warned_, true)) return;
    const std::string text = error.what();  // of several lines, where Python raised it
    std::cerr << "cpudist: warning: the completion hook of " + told.call.describe() +
                     " failed: " + text.substr(0, text.find('\n')) + " (later failures are not reported)\n"
              << std::flush;
  }
}

void Engine::set_hook(CallGroup& group, std::shared_ptr<const CompletionHooks::Hook> hook) {
  hooks_.start();
  Lock lock(mutex_);
  group.hook = std::move(hook);
}

void Engine::wait_for_all(const CallGroup& group, Milliseconds timeout) {
  std::vector<AsyncWorkPtr> works;
  {
    Lock lock(mutex_);
    std::copy_if(in_flight_.begin(), in_flight_.end(), std::back_inserter(works),
                 [&](const AsyncWorkPtr& work) { return work->call().group.get() == &group; });
  }
  for (const auto& work : works) work->wait();
  if (hooks_.wait(timeout)) return;
  throw backend_error("a completion hook has not returned for " + std::to_string(timeout.count() / 1000) + " s");
}

}  // namespace cpudist
