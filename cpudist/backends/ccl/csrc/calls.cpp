#include "calls.hpp"

#include <algorithm>

#include "engine.hpp"

namespace cpudist {

namespace {

CallUnderWay describe(AsyncWork& work, Clock::time_point now) {
  CallUnderWay result{work.call(), 0, std::nullopt, std::chrono::duration<double>(now - work.started()).count()};
  for (const auto& tensor : work.result()) {
    result.bytes += tensor.nbytes();
    if (!result.like) result.like = tensor;
  }
  return result;
}

}  // namespace

void CallGroup::completed(const Call& call) {
  if (call.peer || call.sequence <= last_sequence) return;
  last_sequence = call.sequence;
  last_name = call.name;
}

void Engine::add(const std::shared_ptr<CallGroup>& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(groups_, [](const auto& other) { return other.expired(); });
  groups_.push_back(group);
}

std::optional<Calls> Engine::calls(Milliseconds limit) {
  const auto begin = Clock::now();
  Lock lock(mutex_, std::try_to_lock);
  while (!lock) {
    if (Clock::now() - begin > limit) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    static_cast<void>(lock.try_lock());
  }
  const auto now = Clock::now();
  Calls result;
  for (const auto* works : {&abandoned_, &in_flight_}) {
    for (const auto& work : *works) result.under_way.push_back(describe(*work, now));
  }
  for (const auto& group : groups_) {
    if (const auto alive = group.lock()) result.groups.push_back(*alive);
  }
  return result;
}

}  // namespace cpudist
