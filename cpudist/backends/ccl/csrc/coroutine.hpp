// Coroutines for algorithms that wait. A coroutine stops at each co_await until the condition holds; the thread that
// tests the request resumes it there.
#pragma once

#include <coroutine>
#include <utility>

#include "transport.hpp"

namespace cpudist {

// A condition that a coroutine waits for with co_await; the object lives in the coroutine's frame.
class Condition {
 public:
  virtual bool holds() = 0;
  // The rank that the condition depends on; -1 if no particular one. Called only while the condition does not hold.
  virtual int awaited_rank() { return -1; }

 protected:
  ~Condition() = default;
};

class Coroutine {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  // co_await always suspends the coroutine, so that one resumption does a bounded amount of work.
  struct Stop {
    Condition& condition;
    bool await_ready() const noexcept { return false; }
    void await_suspend(Handle handle) const noexcept;
    void await_resume() const noexcept {}
  };

  struct promise_type {
    Condition* awaited = nullptr;  // null before the first co_await

    Coroutine get_return_object() { return Coroutine(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const { throw; }
    Stop await_transform(Condition&& condition) const noexcept { return {condition}; }
    Stop await_transform(Condition& condition) const noexcept { return {condition}; }
  };

  Coroutine(Coroutine&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Coroutine& operator=(Coroutine&&) = delete;
  ~Coroutine() {
    if (handle_) handle_.destroy();
  }

  bool done() const { return handle_.done(); }
  bool can_resume() const {
    Condition* const awaited = handle_.promise().awaited;
    return awaited == nullptr || awaited->holds();
  }
  void resume() const { handle_.resume(); }
  // The rank that the coroutine waits for, or -1. Called only while the coroutine cannot be resumed.
  int awaited_rank() const { return handle_.promise().awaited->awaited_rank(); }

 private:
  explicit Coroutine(Handle handle) : handle_(handle) {}
  Handle handle_;
};

// Queue numbers: callers get them in rising order, and are served in the same order.
struct Turns {
  uint64_t given = 0;
  uint64_t done = 0;
};

class Turn final : public Condition {
 public:
  Turn(const Turns& turns, uint64_t number) : turns_(turns), number_(number) {}
  bool holds() override { return turns_.done == number_; }

 private:
  const Turns& turns_;
  const uint64_t number_;
};

// Limits how often a waiting request looks for the cause of the wait: about once a second.
class Watch {
 public:
  void moved() { idle_ = 0; }

  // Returns whether to look now. To be called in each test in which nothing has moved.
  bool due() {
    if (++idle_ % kIdleTests != 0) return false;
    const auto now = Clock::now();
    if (idle_ == kIdleTests) looked_ = now;
    if (now - looked_ < kInterval) return false;
    looked_ = now;
    return true;
  }

 private:
  static constexpr int kIdleTests = 64;  // tests between two readings of the clock
  static constexpr std::chrono::seconds kInterval{1};

  int idle_ = 0;
  Clock::time_point looked_;
};

inline void Coroutine::Stop::await_suspend(Handle handle) const noexcept { handle.promise().awaited = &condition; }

}  // namespace cpudist
