#include "engine.hpp"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "endpoint.hpp"
#include "errors.hpp"
#include "kernels/floating_point.hpp"

namespace cpudist {

namespace {

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

// Never destroyed, because threads and buffers may outlive the static objects.
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

// The child has no threads, and the connections belong to its parent, so it gets an engine that refuses all calls. The
// parent's engine stays in memory, because its mutex may be locked.
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
  const WithoutGil without_gil;
  Finished finished;
  Lock lock(mutex_);
  check_usable();
  check_value(!work->endpoint_->aborted(), work->call().name, ": the group has been aborted; make a new one");
  work->start();
  in_flight_.push_back(work);
  // Advance the new work first: the other works take longer, and peers may wait for this one only. If another thread
  // polls, that thread advances the others.
  progress_from(std::prev(in_flight_.end()), finished);
  if (poller_ == kNobody) progress(finished);
  if (background) call_thread();
  announce(lock, finished);
}

// Advances the works from `it` to the newest; returns whether something has moved.
bool Engine::progress_from(Works::iterator it, Finished& finished) {
  const kernels::DefaultFloatingPoint floating_point;
  bool moved = false;
  while (it != in_flight_.end()) {
    try {
      const auto progress = (*it)->advance();
      moved = moved || progress != Progress::kWaiting;
      if (progress != Progress::kComplete) {
        ++it;
        continue;
      }
    } catch (const std::exception& error) {
      // The transport is in an unknown state on this rank only, so later calls may not match those of the peers.
      abandon_all((*it)->call().describe() + " failed: " + error.what(), finished);
      return true;
    }
    (*it)->call().group->completed((*it)->call());
    (*it)->end();
    finished.push_back(std::move(*it));
    it = in_flight_.erase(it);
  }
  return moved;
}

// Announces these works. A thread of the engine announces those with a future: a callback may wait for other works, or
// for a lock that this thread holds. Then yields to the works' waiters, whose core this thread might otherwise keep.
void Engine::announce(Lock& lock, Finished& finished) {
  if (finished.empty()) return;
  const auto futures =
      std::stable_partition(finished.begin(), finished.end(), [](const auto& work) { return !work->future_; });
  with_future_.insert(with_future_.end(), futures, finished.end());
  finished.erase(futures, finished.end());
  if (!with_future_.empty()) call_thread();
  if (sleepers_ > 0) turn_.notify_all();
  const bool hands_over = sleepers_ + handing_over_ > 0;
  lock.unlock();
  for (const auto& work : finished) work->announce();
  finished.clear();
  lock.lock();
  if (!hands_over) return;
  ++handing_over_;
  yield(lock);
  --handing_over_;
}

void Engine::poll(AsyncWork* work) {
  const WithoutGil without_gil;
  Finished finished;
  Lock lock(mutex_);
  progress(finished);
  if (work && !work->done() && work->overdue(Clock::now()) && usable()) expire(*work, work->started(), finished);
  announce(lock, finished);
}

void Engine::expire(AsyncWork& work, Clock::time_point since, Finished& finished) {
  abandon_all(work.call().describe() + " timed out after " + seconds(Clock::now() - since) +
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

void Engine::abort(const GroupState& group) {
  const WithoutGil without_gil;
  Finished finished;
  Lock lock(mutex_);
  const auto oldest = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [&](const AsyncWorkPtr& work) { return work->call().group.get() == &group; });
  if (oldest != in_flight_.end())
    abandon_all((*oldest)->call().describe() + " was aborted; start the job again", finished);
  announce(lock, finished);
}

void Engine::close() {
  const WithoutGil without_gil;
  Finished finished;
  Lock lock(mutex_);
  if (usable()) abandon_all("the process is ending; wait for all calls before it ends", finished);
  announce(lock, finished);
  auto threads = std::move(threads_);
  lock.unlock();
  for (auto& thread : threads) thread.join();
}

// Fails all works if one is overdue. This is for works without a thread in wait(), which checks the deadline itself.
void Engine::expire_overdue(Finished& finished) {
  const auto now = Clock::now();
  for (const auto& work : in_flight_) {
    // A send or receive may be posted for long, such as the receive of a server that does other work meanwhile.
    const bool awaited = work->future_ || !work->call().peer;
    if (awaited && work->overdue(now)) return expire(*work, work->started(), finished);
  }
}

void Engine::add(const std::shared_ptr<GroupState>& group) {
  const WithoutGil without_gil;
  const Lock lock(mutex_);
  std::erase_if(groups_, [](const auto& other) { return other.expired(); });
  groups_.push_back(group);
}

PendingCall::PendingCall(AsyncWork& work, Clock::time_point now)
    : call(work.call()), bytes(0), seconds(std::chrono::duration<double>(now - work.started()).count()) {
  for (const auto& tensor : work.result()) {
    bytes += tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
    if (!like) like = tensor;
  }
}

std::optional<Snapshot> Engine::snapshot(Milliseconds limit) {
  const WithoutGil without_gil;
  const auto begin = Clock::now();
  Lock lock(mutex_, std::try_to_lock);
  while (!lock) {
    if (Clock::now() - begin > limit) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    static_cast<void>(lock.try_lock());
  }
  const auto now = Clock::now();
  Snapshot result;
  for (const auto* works : {&abandoned_, &in_flight_}) {
    for (const auto& work : *works) result.pending.emplace_back(*work, now);
  }
  for (const auto& group : groups_) {
    if (const auto alive = group.lock()) result.groups.push_back(*alive);
  }
  return result;
}

}  // namespace cpudist
