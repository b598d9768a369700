#include "communicator.hpp"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

namespace cpudist::oneccl {

namespace {

// Calls under way at once, such as the pieces of a large tensor. Inside one machine one at a time is best, it stays in
// the caches (96 MB: 8.7 ms one at a time, 12.5 four, 33 all). Across hosts pieces must overlap to fill the wire, but
// some hold a copy of what they send.
constexpr size_t kMostUnderWayOnOneNode = 1;
constexpr size_t kMostUnderWayAcrossNodes = 8;

// oneCCL's rendezvous over the group's own store: no second server, no choice of network interface, one time limit.
class GroupKvs final : public ccl::kvs_interface {
 public:
  explicit GroupKvs(KeyValueStore* store) : store_(store) {}

  // An empty answer means "not there yet"; oneCCL then asks again at once, which would flood the store of a large job.
  ccl::vector_class<char> get(const ccl::string_class& key) override {
    if (!store_) return {};
    const auto value = store_->get(std::string(key.c_str()));
    if (!value) {
      std::this_thread::sleep_for(Milliseconds(1));
      return {};
    }
    return {value->begin(), value->end()};
  }

  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override {
    if (store_) store_->set(std::string(key.c_str()), std::string(data.begin(), data.end()));
  }

  int get_id() override { return 0; }

  // A communicator removes its keys when it goes, but the store's server may have gone before it.
  void close() { store_ = nullptr; }

 private:
  KeyValueStore* store_;
};

// Ends the process when a call that cannot be interrupted outlasts its limit.
class Watchdog {
 public:
  Watchdog(const std::string& what, Milliseconds limit)
      : thread_([this, what, limit] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (finished_.wait_for(lock, limit, [this] { return over_; })) return;
          std::fprintf(stderr,
                       "cpudist: %s did not finish within %.1f s: a peer is gone or cannot be reached; ending\n",
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

// Without oneCCL's line for each setting that is not at its default: it writes those to standard output, and before it
// has read CCL_LOG_LEVEL.
void start() {
  std::stringstream output;
  auto* const screen = std::cout.rdbuf(output.rdbuf());
  try {
    ccl::init();
  } catch (...) {
    std::cout.rdbuf(screen);
    throw;
  }
  std::cout.rdbuf(screen);
  for (std::string line; std::getline(output, line);) {
    if (line.find("|CCL_WARN| value of ") == std::string::npos) std::cout << line << std::endl;
  }
}

std::string library_version() { return ccl::get_library_version().full; }

Communicator::Communicator(const Group& group)
    : most_under_way_(group.on_one_node() ? kMostUnderWayOnOneNode : kMostUnderWayAcrossNodes) {
  Watchdog watchdog("creating a oneCCL communicator of " + std::to_string(group.size) + " ranks (rank " +
                        std::to_string(group.rank) + ")",
                    group.timeout);
  const auto kvs = std::make_shared<GroupKvs>(group.store);
  raw_ = std::make_unique<ccl::communicator>(ccl::create_communicator(group.size, group.rank, kvs));
  kvs->close();
}

}  // namespace cpudist::oneccl
