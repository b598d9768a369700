// Ranks without torch, for the programs beside this file: as processes, or as threads of one process for
// ThreadSanitizer, which sees no further.
#pragma once

#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shared_memory/transport.hpp"

namespace cpudist::testing {

// How many threads of a rank carry a large call (threads.cpp).
extern int threads_of_rank;
// How late the other threads come to each call that they join, and how many calls that were.
extern Milliseconds lateness;
extern std::atomic<int> joins;

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Calls `body` with a new folder, which is removed afterwards. Returns what it returns, an exit status.
template <typename Body>
int in_a_folder(Body body) {
  const std::filesystem::path temporary = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp";
  std::string folder = temporary / "shared-memory-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const int status = body(std::filesystem::path(folder));
  std::filesystem::remove_all(folder);
  return status;
}

// A store whose values are files in a folder. One per group.
class FolderStore : public KeyValueStore {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }

  void set(const std::string& key, const std::string& value) override {
    const auto target = file(key);
    std::ofstream(target.string() + ".part") << value;
    std::filesystem::rename(target.string() + ".part", target);
  }

  std::optional<std::string> get(const std::string& key) override {
    std::ifstream stream(file(key));
    if (!stream) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }

 private:
  std::filesystem::path file(std::string key) const {
    for (char& letter : key) letter = letter == '/' ? '_' : letter;
    return folder_ / key;
  }

  std::filesystem::path folder_;
};

inline TransportPtr make_transport(const std::filesystem::path& folder, int rank, int size,
                                   Milliseconds timeout = Milliseconds(60'000)) {
  FolderStore store(folder);
  const Group group{rank, size, std::vector<int>(static_cast<size_t>(size), 0), timeout, &store};
  std::string why;
  auto transport = shared_memory::create(group, why);
  if (!transport) throw std::runtime_error(why);
  return transport;
}

// Tests the request until it is complete, as the engine does: spinning, yielding, sleeping. False after `limit`.
inline bool complete(Request& request, Milliseconds limit = Milliseconds(120'000)) {
  auto moved = Clock::now();
  for (int polls = 0;; ++polls) {
    switch (request.test()) {
      case Progress::kComplete: return true;
      case Progress::kMoved: polls = 0; break;
      case Progress::kWaiting: break;
    }
    if (polls < 256) continue;
    if (polls == 256) moved = Clock::now();
    const auto idle = Clock::now() - moved;
    if (idle > limit) return false;
    if (idle < Milliseconds(100)) {
      sched_yield();
    } else {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
}

// Runs body(rank) for each rank, as processes or as threads. Returns the number of ranks that failed.
inline int run_ranks(int ranks, bool threads, const std::function<void(int)>& body) {
  const auto guarded = [&](int rank) {
    try {
      body(rank);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  };
  int failed = 0;
  if (threads) {
    std::vector<std::thread> running;
    std::vector<int> results(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      running.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = guarded(rank); });
    }
    for (auto& thread : running) thread.join();
    for (const int result : results) failed += result;
    return failed;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const int result = guarded(rank);
      std::fflush(nullptr);
      _exit(result);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  return failed;
}

}  // namespace cpudist::testing
