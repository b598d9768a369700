// A mutex that threads get in the order in which they ask for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace cpudist {

// With std::mutex, a thread that polls (it unlocks and locks again in a loop) can shut out all other threads.
class FairMutex {
 public:
  void lock() {
    const uint32_t ticket = next_.fetch_add(1);
    for (uint32_t serving; (serving = serving_.load()) != ticket;) serving_.wait(serving);
  }

  bool try_lock() {
    uint32_t ticket = serving_.load(std::memory_order_acquire);
    return next_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acquire);
  }

  void unlock() {
    const uint32_t serving = serving_.load(std::memory_order_relaxed) + 1;
    serving_.store(serving);
    if (next_.load() != serving) serving_.notify_all();  // store, then load: a thread that now asks is seen, or sees it
  }

 private:
  std::atomic<uint32_t> next_{0};
  std::atomic<uint32_t> serving_{0};
};

}  // namespace cpudist
