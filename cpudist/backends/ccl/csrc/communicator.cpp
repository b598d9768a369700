#include "communicator.hpp"

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <unistd.h>

#include "engine.hpp"

namespace cpudist {

namespace {

// oneCCL's rendezvous over the group's own store: no second server, no choice of network interface, one time limit.
class StoreKvs final : public ccl::kvs_interface {
 public:
  explicit StoreKvs(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // An empty answer means "not there yet"; oneCCL then asks again at once, which would flood the store of a large job.
  ccl::vector_class<char> get(const ccl::string_class& key) override {
    const std::string name(key.c_str());
    if (!store_) return {};
    if (!store_->check({name})) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return {};
    }
    const auto value = store_->get(name);
    return {value.begin(), value.end()};
  }

  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override {
    if (store_) store_->set(std::string(key.c_str()), std::vector<uint8_t>(data.begin(), data.end()));
  }

  int get_id() override { return 0; }

  // A communicator removes its keys when it goes, but the store's server may have gone before it.
  void close() { store_.reset(); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Ends the process when a call that cannot be interrupted outlasts its limit.
class Watchdog {
 public:
  Watchdog(const std::string& what, Milliseconds limit) : thread_([this, what, limit] {
    std::unique_lock<std::mutex> lock(mutex_);
    if (finished_.wait_for(lock, limit, [this] { return over_; })) return;
    std::fprintf(stderr, "cpudist: %s did not finish within %.1f s: a peer is gone or cannot be reached; ending\n",
                 what.c_str(), static_cast<double>(limit.count()) / 1000);
    std::fflush(nullptr);
    _exit(1);
  }) {}

  ~Watchdog() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    finished_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace

Communicator::Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
                           size_t most_under_way)
    : most_under_way_(most_under_way) {
  Engine::get().exclusively([&] {
    Watchdog watchdog("creating a oneCCL communicator of " + std::to_string(size) + " ranks (rank " +
                          std::to_string(rank) + ")",
                      timeout);
    const auto kvs = std::make_shared<StoreKvs>(store);
    raw_ = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, kvs));
    kvs->close();
  });
  mailbox_ = std::make_unique<Mailbox>(*raw_);
}

Communicator::~Communicator() {
  // A message header may still be awaited, and after a failure anything may still be under way: oneCCL writes to what
  // it was given, so it keeps it.
  if (!Engine::get().usable() || mailbox_->listening()) {
    static_cast<void>(mailbox_.release());
    static_cast<void>(raw_.release());
  }
}

}  // namespace cpudist
