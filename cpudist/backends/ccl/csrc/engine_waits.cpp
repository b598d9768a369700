// How threads wait for works.
#include <sched.h>

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>

#include "backoff.hpp"
#include "engine.hpp"

namespace cpudist {

namespace {

// A thread that takes over polling from another thread yields its core after each step for this time. Otherwise it
// would not pause while messages move, and the other thread on its core would wait for the end of a time slice.
constexpr Milliseconds kShared{1};

// How long future_of() polls in a backward pass for a call inside a machine, counted from the last progress. DDP asks
// for a future when all ranks have come to the same bucket. If future_of() polls, all computing threads carry the
// bucket. The engine's thread would carry it alone, and compete with them for the cores.
constexpr Milliseconds kPatience{100};

}  // namespace

void Engine::wait(AsyncWork& work, Milliseconds timeout) {
  if (work.done()) return;
  // The clock starts here and not with the work, because the caller may have computed for long in between.
  const WithoutGil without_gil;
  const auto begin = Clock::now();
  const auto deadline = begin + (timeout == kNoTimeout ? work.call().timeout : std::min(timeout, kLongestTimeout));
  Finished finished;
  Lock lock(mutex_);
  ++waiting_;
  work.deadline_ = std::max(work.deadline_, deadline);
  for (bool polls = true; !work.done() && usable(); polls = poller_ == kNobody) {
    if (polls) {
      poll_until_done(lock, work, deadline, finished);
    } else {
      sleep_until_done(lock, work, deadline);
    }
    if (!work.done() && usable() && Clock::now() > deadline) expire(work, begin, finished);
    announce(lock, finished);
  }
  --waiting_;
  call_thread();
  blocked_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  if (!work.done()) check_usable();
}

// Returns also when another work has finished, because its waiter must be notified, or when another thread polls.
void Engine::poll_until_done(Lock& lock, const AsyncWork& work, Clock::time_point deadline, Finished& finished) {
  Backoff backoff;
  const auto self = poller_ = std::this_thread::get_id();
  if (std::exchange(last_poller_, self) != self) shared_until_ = Clock::now() + kShared;
  if (handing_over_ > 0) yield(lock);
  while (poller_ == self && !work.done() && usable()) {
    const bool moved = progress(finished);
    const auto now = Clock::now();
    if (!finished.empty() || now > deadline) break;
    if (moved) backoff.reset(now);
    if (moved && now < shared_until_) {
      yield(lock);
      continue;
    }
    lock.unlock();
    backoff.pause(now);
    lock.lock();
  }
  if (poller_ != self) return;
  poller_ = kNobody;
  if (sleepers_ > 0) turn_.notify_all();
}

// Returns also when no thread polls any more.
void Engine::sleep_until_done(Lock& lock, const AsyncWork& work, Clock::time_point deadline) {
  ++sleepers_;
  turn_.wait_until(lock, deadline, [&] { return work.done() || !usable() || poller_ == kNobody; });
  --sleepers_;
  if (work.done()) return;
  yield(lock);  // the thread that has polled goes on first: it often calls again at once
}

void Engine::yield(Lock& lock) {
  lock.unlock();
  sched_yield();
  lock.lock();
}

// Advances all works while `goes_on(last)` holds; `last` is the time of the last progress.
template <typename Condition>
void Engine::poll_while(Condition goes_on) {
  const WithoutGil without_gil;
  const auto begin = Clock::now();
  auto last = begin;
  Backoff backoff;
  Finished finished;
  Lock lock(mutex_);
  ++waiting_;
  while (usable() && goes_on(last)) {
    const bool moved = progress(finished);
    announce(lock, finished);
    const auto now = Clock::now();
    if (moved) backoff.reset(last = now);
    lock.unlock();
    backoff.pause(now);
    lock.lock();
  }
  --waiting_;
  call_thread();
  blocked_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
}

void Engine::drain(Milliseconds limit) {
  const auto begin = Clock::now();
  poll_while([&](Clock::time_point) {
    const auto now = Clock::now();
    return std::any_of(in_flight_.begin(), in_flight_.end(), [&](const AsyncWorkPtr& work) {
      return limit == kNoTimeout ? now - work->started() <= work->call().timeout : now - begin <= limit;
    });
  });
}

c10::intrusive_ptr<c10::ivalue::Future> Engine::future_of(AsyncWork& work) {
  const WithoutGil without_gil;
  if (!polls() && !work.call().group->across_machines && torch::autograd::get_current_graph_task_id() >= 0) {
    poll_while([&](Clock::time_point last) { return !work.done() && Clock::now() - last < kPatience; });
  }
  Lock lock(mutex_);
  if (work.future_) return work.future_;
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!work.done()) {
    work.future_ = future;  // completed by the thread that ends the work
    call_thread();
    hurry_ = true;
    wake_.notify_all();
  } else {
    lock.unlock();
    work.complete(*future);
  }
  return future;
}

}  // namespace cpudist
