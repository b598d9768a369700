#include "rendezvous.hpp"

#include <sys/random.h>

#include <algorithm>
#include <thread>

namespace cpudist {

bool Group::on_one_node() const {
  return std::all_of(nodes.begin(), nodes.end(), [this](int node) { return node == nodes.front(); });
}

namespace {

// Waits for a key and returns its value, or nothing after the deadline.
std::optional<std::string> wait_for(KeyValueStore& store, const std::string& key, Clock::time_point deadline) {
  for (auto pause = std::chrono::microseconds(100);; pause = std::min(2 * pause, std::chrono::microseconds(50'000))) {
    if (auto found = store.get(key)) return found;
    if (Clock::now() > deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
}

// Values as one text: the length of each in decimal, a space, then the value.
std::string pack(const std::vector<std::string>& values) {
  std::string text;
  for (const auto& value : values) text += std::to_string(value.size()) + ' ' + value;
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::vector<std::string> values;
  for (size_t at = 0; at < text.size();) {
    const size_t space = text.find(' ', at);
    const size_t length = std::stoul(text.substr(at, space - at));
    values.push_back(text.substr(space + 1, length));
    at = space + 1 + length;
  }
  return values;
}

}  // namespace

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw std::runtime_error("getrandom has failed; allow this system call");
  return number;
}

// Rank 0 reads every rank's value and publishes all under one key, so each other rank sets one key and reads one.
std::vector<std::string> all_gather(const Group& group, const std::string& key, const std::string& value) {
  const auto name = [&](int rank) { return key + "/" + std::to_string(rank); };
  const auto everything = key + "/all";
  const auto deadline = Clock::now() + group.timeout;
  const auto missing = [&](int rank) {
    return TransportError("rank " + std::to_string(group.rank) + " still waits for rank " + std::to_string(rank) +
                          " of " + std::to_string(group.size) + " to share '" + key + "'; look at that rank's output");
  };
  auto& store = *group.store;
  if (group.rank == 0) {
    std::vector<std::string> values{value};
    for (int rank = 1; rank < group.size; ++rank) {
      auto found = wait_for(store, name(rank), deadline);
      if (!found) throw missing(rank);
      values.push_back(std::move(*found));
    }
    store.set(everything, pack(values));
    return values;
  }
  store.set(name(group.rank), value);
  if (const auto found = wait_for(store, everything, deadline)) return unpack(*found);
  for (int rank = 1; rank < group.size; ++rank) {
    if (!store.get(name(rank))) throw missing(rank);
  }
  throw missing(0);
}

}  // namespace cpudist
