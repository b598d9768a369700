// Algorithms that wait, written from top to bottom: a coroutine stops at each co_await until what it names has come
// about, and whoever tests the request resumes it there.
#pragma once

#include <coroutine>
#include <utility>

namespace cpudist::shared_memory {

// What a coroutine waits for. Lives in the coroutine's frame, as the operand of co_await.
class Condition {
 public:
  virtual bool holds() = 0;

 protected:
  ~Condition() = default;
};

class Coroutine {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  // co_await condition: always stops, so that one resumption does a bounded amount of work.
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
    Stop await_transform(Condition& condition) const noexcept { return {condition}; }
    Stop await_transform(Condition&& condition) const noexcept { return {condition}; }
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

 private:
  explicit Coroutine(Handle handle) : handle_(handle) {}
  Handle handle_;
};

inline void Coroutine::Stop::await_suspend(Handle handle) const noexcept { handle.promise().awaited = &condition; }

}  // namespace cpudist::shared_memory
