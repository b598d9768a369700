#include <thread>

#include "transport.hpp"

namespace cpudist {

std::vector<std::string> exchange(const Group& group, const std::string& key, const std::string& value) {
  const auto name = [&](int rank) { return key + "/" + std::to_string(rank); };
  const auto deadline = Clock::now() + group.timeout;
  group.store->set(name(group.rank), value);
  std::vector<std::string> values(group.size);
  for (int rank = 0; rank < group.size; ++rank) {
    for (auto pause = std::chrono::microseconds(100);;) {
      if (auto found = group.store->get(name(rank))) {
        values[rank] = std::move(*found);
        break;
      }
      if (Clock::now() > deadline) {
        throw TransportError("rank " + std::to_string(group.rank) + " still waits for rank " + std::to_string(rank) +
                             " of " + std::to_string(group.size) + " to share '" + key + "'");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(50'000));
    }
  }
  return values;
}

}  // namespace cpudist
