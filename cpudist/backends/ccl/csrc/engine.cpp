#include "engine.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "backoff.hpp"
#include "endpoint.hpp"
#include "errors.hpp"

namespace cpudist {

namespace {

constexpr Milliseconds kNap{10};
// While somebody has a future instead of waiting: little of a core that computes, and in this time a link of 1 Gbit/s
// takes 60 KB, which the kernel's buffers hold.
constexpr std::chrono::microseconds kShortNap{500};

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

// Never destroyed: threads and buffers may outlive the static objects.
std::atomic<Engine*> instance{nullptr};

}  // namespace

Engine& Engine::get() {
  static const bool made = [] {
    instance = new Engine;
    pthread_atfork(nullptr, nullptr, &Engine::after_fork_in_child);
    return true;
  }();
  static_cast<void>(made);
  return *instance.load(std::memory_order_relaxed);
}

// The child has none of the threads, and the connections are its parent's: it gets an engine that refuses everything.
// The parent's stays where it is, with its mutex in whatever state it was.
void Engine::after_fork_in_child() {
  auto* const engine = new Engine;
  engine->reason_ = "this process was forked from a rank of the job; start it with a spawn method instead";
  engine->out_of_use_ = true;
  instance = engine;
}

void Engine::check_usable() const {
  if (!usable()) throw backend_error("communication is out of use in this process: " + reason_);
}

void Engine::submit(const AsyncWorkPtr& work, bool background) {
  Finished finished;
  Lock lock(mutex_);
  check_usable();
  check_value(!work->endpoint_->aborted(), work->call().name, ": the group has been aborted");
  work->start();
  in_flight_.push_back(work);
  progress(finished);
  if (background) call_thread();
  announce(lock, finished);
}

// Moves every work on; true when something has moved.
bool Engine::progress(Finished& finished) {
  bool moved = false;
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    try {
      const auto progress = (*it)->advance();
      moved = moved || progress != Progress::kWaiting;
      if (progress != Progress::kComplete) {
        ++it;
        continue;
      }
    } catch (const std::exception& error) {
      // The transport is in an unknown state on this rank only: nothing after it can be trusted to match the peers.
      abandon_all((*it)->call().describe() + " failed: " + error.what(), finished);
      return true;
    }
    complete(**it);
    finished.push_back(std::move(*it));
    it = in_flight_.erase(it);
  }
  return moved;
}

void Engine::complete(AsyncWork& work) {
  auto& group = *work.call().group;
  group.completed(work.call());
  const bool success = !work.failure_;
  if (group.hook && success && work.retrieveOpType() != c10d::OpType::UNKNOWN) [[unlikely]]
    hooks_.tell(work);
  work.end();  // last: who sees the work done, without the lock, may then wait for all that hooks have been told
}

// Tells who waits for these works. A future's callbacks may wait for other works, so somebody else polls meanwhile.
void Engine::announce(Lock& lock, Finished& finished) {
  if (finished.empty()) return;
  if (any_future(finished)) call_thread();
  lock.unlock();
  for (const auto& work : finished) work->announce();
  finished.clear();
  lock.lock();
}

void Engine::wait(AsyncWork& work, Milliseconds timeout) {
  if (work.done()) return;
  // The clock starts here and not with the work: a caller that computed for long in between is not a late peer.
  const auto begin = Clock::now();
  const auto limit = timeout == kNoTimeout ? work.call().timeout : timeout;
  Backoff backoff;
  Finished finished;
  Lock lock(mutex_);
  ++waiting_;
  while (!work.done() && usable()) {
    const bool moved = progress(finished);
    const auto now = Clock::now();
    if (!work.done() && now - begin > limit) expire(work, now - begin, finished);
    if (!finished.empty()) {
      --waiting_;
      announce(lock, finished);
      ++waiting_;
    }
    if (work.done()) break;
    if (moved) backoff.reset(now);
    lock.unlock();
    backoff.pause(now);
    lock.lock();
  }
  --waiting_;
  call_thread();
  blocked_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  if (!work.done()) check_usable();
}

void Engine::poll() {
  Finished finished;
  Lock lock(mutex_);
  progress(finished);
  announce(lock, finished);
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::future_of(AsyncWork& work) {
  if (!polls() && !work.call().group->across_machines) wait(work, kNoTimeout);
  Lock lock(mutex_);
  if (work.future_) return work.future_;
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!work.done()) {
    work.future_ = future;  // completed by whoever ends the work
    call_thread();
  } else {
    lock.unlock();
    work.complete(*future);
  }
  return future;
}

void Engine::expire(AsyncWork& work, Clock::duration waited, Finished& finished) {
  abandon_all(work.call().describe() + " timed out after " + seconds(waited) +
                  ": a peer is late, gone or called something else; end the job and look at the other ranks' output",
              finished);
}

void Engine::abandon_all(const std::string& reason, Finished& finished) {
  reason_ = reason;
  const auto error = std::make_exception_ptr(backend_error(reason));
  for (const auto& work : in_flight_) {
    work->end(error);
    finished.push_back(work);
  }
  abandoned_.splice(abandoned_.end(), in_flight_);
  out_of_use_ = true;
  wake_.notify_all();
}

void Engine::drain(Milliseconds limit) {
  const auto begin = Clock::now();
  Backoff backoff;
  Finished finished;
  Lock lock(mutex_);
  while (usable() && !in_flight_.empty()) {
    const bool moved = progress(finished);
    announce(lock, finished);
    const auto now = Clock::now();
    const bool over = std::all_of(in_flight_.begin(), in_flight_.end(), [&](const AsyncWorkPtr& work) {
      return limit == kNoTimeout ? now - work->started() > work->call().timeout : now - begin > limit;
    });
    if (over) return;
    if (moved) backoff.reset(now);
    lock.unlock();
    backoff.pause(now);
    lock.lock();
  }
}

void Engine::abort(const CallGroup& group) {
  Finished finished;
  Lock lock(mutex_);
  const auto oldest = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [&](const AsyncWorkPtr& work) { return work->call().group.get() == &group; });
  if (oldest != in_flight_.end()) abandon_all((*oldest)->call().describe() + " was aborted", finished);
  announce(lock, finished);
}

void Engine::close() {
  constexpr Milliseconds kHooksLimit{5000};
  Finished finished;
  Lock lock(mutex_);
  if (usable()) abandon_all("the process is ending", finished);
  announce(lock, finished);
  auto threads = std::move(threads_);
  lock.unlock();
  for (auto& thread : threads) thread.join();
  hooks_.close(kHooksLimit);
}

void Engine::start_thread(bool polls) {
  Lock lock(mutex_);
  if (started_ || !usable()) return;
  started_ = true;
  polls_ = polls;
  add_thread();  // now, so that whoever pins this process finds it
}

// Sees to it that one of the engine's threads polls where nobody else does. Called with the lock held.
void Engine::call_thread() {
  if (!started_ || !usable() || !needs_thread()) return;
  if (idle_threads_ > 0) {
    wake_.notify_one();
  } else {
    add_thread();
  }
}

// Whoever pins this process moves the first thread to a core of its own; the others belong there too, and not where the
// thread runs that happens to need one more.
void Engine::add_thread() {
  ++idle_threads_;
  threads_.emplace_back(&Engine::run, this);
  const auto added = threads_.back().native_handle(), first = threads_.front().native_handle();
  pthread_setname_np(added, "cpudist-ccl");
  cpu_set_t cpus;
  if (added != first && pthread_getaffinity_np(first, sizeof cpus, &cpus) == 0) {
    pthread_setaffinity_np(added, sizeof cpus, &cpus);
  }
}

// One of the engine's threads: asleep until it is needed, then polling until something is complete.
void Engine::run() {
  Finished finished;
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !usable() || needs_thread(); });
    if (!usable()) return;
    --idle_threads_;
    thread_polls_ = true;
    poll_until_finished(lock, finished);
    thread_polls_ = false;
    announce(lock, finished);
    ++idle_threads_;
  }
}

void Engine::poll_until_finished(Lock& lock, Finished& finished) {
  Backoff backoff;
  bool moved = false;
  while (usable() && !in_flight_.empty() && waiting_ == 0 && finished.empty()) {
    const auto now = Clock::now();
    if (moved) backoff.reset(now);
    if (polls() || moved) {
      lock.unlock();
      backoff.pause(now);
      lock.lock();
    } else {
      wake_.wait_for(lock, any_future(in_flight_) ? kShortNap : kNap, [this] { return !usable(); });
    }
    if (!usable() || waiting_ > 0) return;
    moved = progress(finished);
    expire_late(finished);
  }
}

// Who holds a future waits for that, and not in wait(), which has the limit.
void Engine::expire_late(Finished& finished) {
  const auto now = Clock::now();
  for (const auto& work : in_flight_) {
    const bool late = work->future_ && now - work->started() > work->call().timeout;
    if (late) return expire(*work, now - work->started(), finished);
  }
}

}  // namespace cpudist
