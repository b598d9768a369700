// What goes wrong, one scenario per run: scenarios NAME. Exit status 0 when all
// went as it must.
//
// late: a rank comes after the others' limit: nothing crashes, and the call can still be completed.
//
// disagreement: ranks make different calls: an error that says which.
//
// counts: ranks disagree about the counts of an alltoall, an allgather or a reduce_scatter: all get one error.
//
// gone: a rank is killed while the others wait for it: all get one error within 5 seconds.
//
// left: a rank has left the group and the others still exchange messages: no error.
//
// no_memory: one rank cannot allocate: all ranks are told the same, and none has a transport.
//
// no_segment: rank 0 cannot make shared memory: likewise.
//
// stranger: the memory that rank 0 means cannot be opened elsewhere: likewise.
//
// eager: with many ranks of several threads, messages of any size arrive; buffers are small there.
//
// crowd: 256 ranks of several threads can share memory; where there is one more, each is told so without waiting for the others.
//
// no_core: where a thread of the rank comes late to a call, the next calls do without it for as long.
//
// requests: making a group asks the store a few questions for each rank, and not one for each pair of ranks.
//
// fork: a child has nothing of its parent's groups, and its end does not disturb them.
#include <csignal>
#include <fstream>
#include <memory>

#include "ranks.hpp"
#include "refuse.hpp"
#include "shared_memory/segment.hpp"

using namespace cpudist;
using namespace cpudist::testing;

namespace {

bool maps_our_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:cpudist") != std::string::npos) return true;
  }
  return false;
}

RequestPtr sum(Transport& transport, std::vector<float>& values) {
  return transport.allreduce(values.data(), values.data(), values.size(), DataType::kFloat32, Reduction::kSum);
}

void late(const std::string& folder, int rank) {
  const auto transport = make_transport(folder, rank, 2);
  std::vector<float> values(300'000, 1);
  if (rank == 1) {
    while (!std::filesystem::exists(folder + "/given up")) sched_yield();
  }
  const auto request = sum(*transport, values);
  if (rank == 0) {
    require(!complete(*request, Milliseconds(50)), "the sum is complete without its peer");
    std::ofstream(folder + "/given up");
  }
  require(complete(*request, Milliseconds(60'000)), "the late sum is not complete");
  require(values == std::vector<float>(300'000, 2), "the late sum is wrong");
}

void disagreement(const std::string& folder, int rank) {
  const auto transport = make_transport(folder, rank, 2);
  std::vector<float> values(rank == 0 ? 10 : 12);
  try {
    const auto request = sum(*transport, values);
    complete(*request);
  } catch (const TransportError& error) {
    const std::string text = error.what();
    require(text.find("all_reduce of 10 float32") != std::string::npos &&
                text.find("all_reduce of 12 float32") != std::string::npos,
            "the error does not say what ranks do: " + text);
    return;
  }
  throw std::runtime_error("ranks that disagree have not noticed");
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no error";
}

// Waits until all three ranks have written their text, and requires that they are the same.
void require_same(const std::string& folder, const std::string& name, int rank, int ranks, const std::string& text) {
  std::ofstream(folder + "/" + name + std::to_string(rank) + ".part") << text;
  std::filesystem::rename(folder + "/" + name + std::to_string(rank) + ".part",
                          folder + "/" + name + std::to_string(rank));
  for (int peer = 0; peer < ranks; ++peer) {
    const auto path = folder + "/" + name + std::to_string(peer);
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(path)) {
      require(Clock::now() < limit, "rank " + std::to_string(peer) + " has written nothing");
      sched_yield();
    }
    std::string theirs;
    std::getline(std::ifstream(path), theirs);
    require(theirs == text, "rank " + std::to_string(peer) + ": " + theirs + "; here: " + text);
  }
}

void counts(const std::string& folder, int rank) {
  std::vector<float> in(30, static_cast<float>(rank)), out(30);
  const auto expect = [&](const char* name, const std::string& words, auto call) {
    const auto transport = make_transport(folder + "/" + name, rank, 3);
    const auto text = error_of([&] {
      complete(*call(*transport));
      complete(*transport->barrier());
    });
    require(text.find(words) != std::string::npos, "another error: " + text);
    require_same(folder, name, rank, 3, text);
  };
  expect("alltoall", "rank 0 sends 4 bytes to rank 1, which expects 20", [&](Transport& transport) {
    std::vector<size_t> sent{1, 1, 1}, received{1, 1, 1};
    if (rank == 1) received[0] = 5;
    return transport.alltoall({&in[0], &in[1], &in[2]}, sent, {&out[0], &out[10], &out[20]}, received,
                              DataType::kFloat32);
  });
  expect("allgather", " of 1 float32", [&](Transport& transport) {
    return transport.allgather(&in[0], {&out[0], &out[10], &out[20]},
                               rank == 0 ? std::vector<size_t>{3, 1, 2} : std::vector<size_t>{1, 3, 2},
                               DataType::kFloat32);
  });
  expect("reduce_scatter", " of 3 float32", [&](Transport& transport) {
    return transport.reduce_scatter({&in[0], &in[10], &in[20]}, &out[0],
                                    rank == 0 ? std::vector<size_t>{3, 1, 2} : std::vector<size_t>{1, 3, 2},
                                    DataType::kFloat32, Reduction::kSum);
  });
}

void gone(const std::string& folder, int rank) {
  const auto transport = make_transport(folder, rank, 3);
  std::vector<float> values(300'000, 1);
  complete(*sum(*transport, values));
  if (rank == 1) raise(SIGKILL);
  const auto begin = Clock::now();
  const auto text = error_of([&] { complete(*sum(*transport, values), Milliseconds(30'000)); });
  require(text == "rank 1 has ended or has left the group; look at its output", "another error: " + text);
  require(Clock::now() - begin < std::chrono::seconds(5), "it took too long");
  const auto message =
      error_of([&] { complete(*transport->recv(values.data(), 1000, 2 - rank), Milliseconds(30'000)); });
  require(message == text, "a message fails otherwise: " + message);
}

void left(const std::string& folder, int rank) {
  auto transport = make_transport(folder, rank, 3);
  std::vector<float> values(300'000, 1);
  complete(*sum(*transport, values));
  if (rank == 1) return transport.reset();
  if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
  const auto request =
      rank == 0 ? transport->recv(values.data(), 1'000'000, 2) : transport->send(values.data(), 1'000'000, 0);
  require(complete(*request, Milliseconds(30'000)), "the message does not arrive");
}

void refused(const std::string& folder, int rank, const char* reason) {
  FolderStore store(folder);
  const Group group{rank, 3, {0, 0, 0}, Milliseconds(60'000), &store};
  std::string why;
  require(shared_memory::create(group, why) == nullptr, "a transport in spite of it all");
  require(why.find(reason) != std::string::npos, "the reason is another one: " + why);
  require(!maps_our_memory(), "memory is left behind");
  std::ofstream(folder + "/why" + std::to_string(rank)) << why;
  for (const int peer : {0, 1, 2}) {
    const auto path = folder + "/why" + std::to_string(peer);
    std::string theirs;
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (theirs.size() < why.size() && Clock::now() < limit) std::getline(std::ifstream(path), theirs);
    require(theirs == why, "ranks were told different things");
  }
}

void no_memory(const std::string& folder, int rank) {
  if (rank == 2) refuse(SYS_fallocate, ENOSPC);
  refused(folder, rank, "rank 2: allocating");
}

void no_segment(const std::string& folder, int rank) {
  if (rank == 0) refuse(SYS_memfd_create, EPERM);
  refused(folder, rank, "rank 0: memfd_create");
}

// What rank 0 says is replaced on its way, as where process numbers mean something else to each rank.
void stranger(const std::string& folder, int rank) {
  if (rank == 0) {
    const auto other = shared_memory::Segment::create(1 << 20);
    const auto address = "1 " + other.address() + "1";
    const auto packed = std::to_string(address.size()) + " " + address + "2 1 2 1 ";
    std::ofstream(folder + "/shared_memory_address_all.part") << packed;
    // Rank 0 will put its own in the same place; the others have to be faster, so it starts when they have read it.
    std::filesystem::rename(folder + "/shared_memory_address_all.part", folder + "/shared_memory_address_all");
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(folder + "/shared_memory_failure_1") ||
           !std::filesystem::exists(folder + "/shared_memory_failure_2")) {
      require(Clock::now() < limit, "the others have not come");
      sched_yield();
    }
  }
  refused(folder, rank, "rank 1: /proc/");
}

void eager(const std::string& folder, int rank) {
  constexpr int kRanks = 16;
  threads_of_rank = 8;
  const auto transport = make_transport(folder, rank, kRanks);
  for (size_t bytes = 8; bytes < 200'000; bytes += 8 + bytes / 4) {
    const std::vector<char> sent(bytes, static_cast<char>(rank + 1));
    std::vector<char> received(bytes);
    const int source = (rank + kRanks - 1) % kRanks;
    // Rank 0 sends first, the others when they have received: a long message is complete when it has been received.
    const auto send = [&] {
      require(complete(*transport->send(sent.data(), bytes, (rank + 1) % kRanks)), "a message has not been sent");
    };
    if (rank == 0) send();
    require(complete(*transport->recv(received.data(), bytes, source)), "a message has not come");
    if (rank != 0) send();
    require(received == std::vector<char>(bytes, static_cast<char>(source + 1)), "a message is wrong");
  }
}

void crowd(const std::string& folder, int rank) {
  threads_of_rank = 8;
  const auto transport = make_transport(folder, rank, 256);
  std::vector<float> values(100'000, 1);
  require(complete(*sum(*transport, values), Milliseconds(60'000)), "the sum is not complete");
  require(values == std::vector<float>(100'000, 256), "the sum is wrong");
  std::string why;
  const Group group{rank, 257, std::vector<int>(257, 0), Milliseconds(60'000), nullptr};
  require(shared_memory::create(group, why) == nullptr, "a transport for 257 ranks");
  require(why == "257 ranks on one machine, more than 256", "the reason is another one: " + why);
}

// Counts what comes back at once; a key that is not there yet is asked for again.
class CountingStore final : public KeyValueStore {
 public:
  explicit CountingStore(const std::string& folder) : store_(folder) {}
  void set(const std::string& key, const std::string& value) override {
    ++count;
    store_.set(key, value);
  }
  std::optional<std::string> get(const std::string& key) override {
    auto found = store_.get(key);
    count += found.has_value();
    return found;
  }

  int count = 0;

 private:
  FolderStore store_;
};

void no_core(const std::string& folder, int rank) {
  constexpr int kCalls = 100;
  threads_of_rank = 2;
  lateness = Milliseconds(200);
  const auto transport = make_transport(folder, rank, 1);
  std::vector<float> values(100'000, 1);
  const auto begin = Clock::now();
  for (int call = 0; call < kCalls; ++call) require(complete(*sum(*transport, values)), "a sum is not complete");
  const auto most = 1 + (Clock::now() - begin) / (2 * lateness);
  require(joins >= 1 && joins <= most && joins < kCalls / 2, std::to_string(joins) + " joins");
}

void requests(const std::string& folder, int rank) {
  constexpr int kRanks = 12;
  CountingStore store(folder);
  std::string why;
  require(shared_memory::create({rank, kRanks, std::vector<int>(kRanks), Milliseconds(60'000), &store}, why) != nullptr,
          why);
  require(store.count <= 2 * (rank == 0 ? kRanks : 2), std::to_string(store.count) + " requests");
}

void fork_a_child(const std::string& folder, int rank) {
  auto transport = make_transport(folder, rank, 2);
  std::vector<float> values(1000, 1);
  const auto before = sum(*transport, values);
  require(maps_our_memory(), "this test would not see the memory");
  const pid_t child = fork();
  if (child == 0) std::exit(maps_our_memory() ? 1 : 0);
  int status = 0;
  waitpid(child, &status, 0);
  require(status == 0, "a child maps the group's memory");
  require(complete(*before), "the sum is not complete");
  require(complete(*sum(*transport, values)), "the second sum is not complete");
  require(values == std::vector<float>(1000, 4), "a sum is wrong after a fork");
  transport.reset();
  require(!maps_our_memory(), "memory is left behind");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  const auto run = [](int ranks, auto body) {
    return in_a_folder(
        [&](const auto& folder) { return run_ranks(ranks, false, [&](int rank) { body(folder, rank); }); });
  };
  if (name == "late") return run(2, late);
  if (name == "disagreement") return run(2, disagreement);
  if (name == "counts") return run(3, counts);
  if (name == "gone") return run(3, gone) != 1;
  if (name == "left") return run(3, left);
  if (name == "no_memory") return run(3, no_memory);
  if (name == "no_segment") return run(3, no_segment);
  if (name == "stranger") return run(3, stranger);
  if (name == "eager") return run(16, eager);
  if (name == "crowd") return run(256, crowd);
  if (name == "no_core") return run(1, no_core);
  if (name == "requests") return run(12, requests);
  if (name == "fork") return run(2, fork_a_child);
  return 2;
}
