#include "engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <c10/util/Exception.h>

namespace cpudist {

namespace {

// How a thread waits between two polls: spinning at first, then letting others have the core, and sleeping once
// nothing has moved for so long that 50 us more cannot matter.
class Backoff {
 public:
  void reset() { polls_ = 0; }

  void pause(Clock::duration idle) {
    if (++polls_ < 256) return;
    if (idle < std::chrono::milliseconds(100)) {
      sched_yield();
    } else {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }

 private:
  int polls_ = 0;
};

void announce(std::vector<OperationPtr>& finished) {
  for (const auto& operation : finished) operation->announce();
  finished.clear();
}

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

std::exception_ptr backend_error(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Engine& Engine::get() {
  // Never destroyed: its thread and oneCCL's buffers may outlive the static objects.
  static Engine* const engine = new Engine;
  return *engine;
}

void Engine::start_thread() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread(&Engine::run, this);
    pthread_setname_np(thread_.native_handle(), "cpudist-ccl");
  }
}

void Engine::check_usable() const {
  if (out_of_use_) C10_THROW_ERROR(DistBackendError, "oneCCL is out of use in this process: " + reason_);
}

void Engine::submit(const OperationPtr& operation, bool background) {
  Finished finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    check_usable();
    in_flight_.push_back(operation);
    progress(finished);
  }
  announce(finished);
  if (background && has_thread() && !operation->done()) wake_.notify_one();
}

void Engine::progress(Finished& finished) {
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    try {
      if (!(*it)->advance()) {
        ++it;
        continue;
      }
      (*it)->end();
    } catch (const std::exception& error) {
      // An exception from oneCCL leaves its schedules in an unknown state on this rank only: nothing after it can be
      // trusted to match the peers.
      abandon_all((*it)->call().describe() + " failed: " + error.what(), finished);
      return;
    }
    finished.push_back(std::move(*it));
    it = in_flight_.erase(it);
  }
}

void Engine::drive(Operation& operation, Milliseconds timeout) {
  if (operation.done()) return;
  // The clock starts here and not with the operation: without an engine thread nothing moved before, and a caller
  // that computed for long in between is not a late peer.
  const auto begin = Clock::now();
  const auto limit = timeout == kNoTimeout ? operation.call().timeout : timeout;
  auto moved = begin;
  Backoff backoff;
  Finished finished;
  ++drivers_;
  while (!operation.done()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!operation.done()) progress(finished);
    }
    const auto now = Clock::now();
    if (!finished.empty()) {
      announce(finished);
      backoff.reset();
      moved = now;
    } else if (now - begin > limit) {
      expire(operation, now - begin);
    } else {
      backoff.pause(now - moved);
    }
  }
  blocked_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  if (--drivers_ == 0 && has_thread()) wake_.notify_one();
}

void Engine::tick() {
  Finished finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    progress(finished);
  }
  announce(finished);
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::future_of(Operation& operation) {
  if (!has_thread()) drive(operation, kNoTimeout);
  std::unique_lock<std::mutex> lock(mutex_);
  if (operation.future_) return operation.future_;
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!operation.done()) {
    operation.future_ = future;  // completed by whoever ends the operation
  } else {
    lock.unlock();
    operation.complete(*future);
  }
  return future;
}

void Engine::expire(Operation& operation, Clock::duration waited) {
  Finished finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (operation.done()) return;
    abandon_all(operation.call().describe() + " timed out after " + seconds(waited) +
                    ": a peer is late, gone or called something else; end the job and look at the other ranks' output",
                finished);
  }
  announce(finished);
}

void Engine::abandon_all(const std::string& reason, Finished& finished) {
  reason_ = "ccl: " + reason;
  const auto error = backend_error(reason_);
  for (const auto& operation : in_flight_) {
    operation->end(error);
    finished.push_back(operation);
  }
  abandoned_.splice(abandoned_.end(), in_flight_);
  out_of_use_ = true;
}

void Engine::drain(Milliseconds limit) {
  const auto begin = Clock::now();
  for (bool idle = false; !idle && usable() && Clock::now() - begin < limit; sched_yield()) {
    tick();
    std::lock_guard<std::mutex> lock(mutex_);
    idle = in_flight_.empty();
  }
}

void Engine::close() {
  Finished finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (usable()) abandon_all("the process is ending", finished);
  }
  announce(finished);
  if (thread_.joinable()) {
    wake_.notify_all();
    thread_.join();
  }
}

void Engine::run() {
  Backoff backoff;
  Finished finished;
  auto moved = Clock::now();
  while (usable()) {
    OperationPtr late;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (in_flight_.empty() || drivers_ > 0) {
        wake_.wait(lock, [this] { return !usable() || (!in_flight_.empty() && drivers_ == 0); });
        backoff.reset();
        moved = Clock::now();
        if (!usable()) return;
      }
      progress(finished);
      const auto now = Clock::now();
      for (const auto& operation : in_flight_) {
        if (now - operation->started() > operation->call().timeout) late = operation;
      }
    }
    const auto now = Clock::now();
    if (!finished.empty()) {
      announce(finished);
      backoff.reset();
      moved = now;
    } else if (late) {
      expire(*late, now - late->started());
    } else {
      backoff.pause(now - moved);
    }
  }
}

}  // namespace cpudist
