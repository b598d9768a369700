#include "process_group.hpp"

#include <algorithm>
#include <utility>

#include <ATen/MemoryOverlap.h>

#include "engine.hpp"
#include "errors.hpp"
#include "disconnect.hpp"

namespace cpudist {

ProcessGroupCcl::ProcessGroupCcl(TransportPtr transport, int rank, int size, Milliseconds timeout, GroupState group)
    : Backend(rank, size),
      endpoint_(std::make_shared<Endpoint>(std::move(transport), rank, size)),
      group_(std::make_shared<GroupState>(std::move(group))),
      timeout_(timeout) {
  Engine::get().add(group_);
}

Call ProcessGroupCcl::next_call(const char* name, Milliseconds timeout, std::optional<int> peer) {
  check_value(endpoint_ != nullptr, name, ": the group has been destroyed; make a new one");
  const auto limit = timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  return {name, peer ? 0 : ++sequence_, peer, rank_, size_, group_, std::min(limit, kLongestTimeout)};
}

WorkPtr ProcessGroupCcl::run(const Kind& kind, Schedule schedule, Tensors inputs, Tensors outputs, Milliseconds timeout,
                             bool background) {
  auto work =
      c10::make_intrusive<CollectiveWork>(next_call(kind.name, timeout), endpoint_, kind.type, kind.profiling_title,
                                          std::move(inputs), std::move(outputs), std::move(schedule));
  Engine::get().submit(work, background);
  return work;
}

WorkPtr ProcessGroupCcl::send(Tensors& tensors, int destination, int tag) {
  const auto& tensor = only("send", tensors);
  check_root("send", destination, size_);
  check_value(destination != rank_, "send: rank ", rank_, " cannot send to itself; name another");
  check_tag("send", tag);
  auto work =
      c10::make_intrusive<SendWork>(next_call("send", timeout_, destination), endpoint_, tensor, destination, tag);
  Engine::get().submit(work, /*background=*/true);
  return work;
}

WorkPtr ProcessGroupCcl::recv(Tensors& tensors, int source, int tag) {
  check_root("recv", source, size_);
  check_value(source != rank_, "recv: rank ", rank_, " cannot receive from itself; name another");
  return receive(tensors, source, tag);
}

WorkPtr ProcessGroupCcl::recvAnysource(Tensors& tensors, int tag) { return receive(tensors, kAnySource, tag); }

WorkPtr ProcessGroupCcl::receive(Tensors& tensors, int source, int tag) {
  const auto& tensor = only("recv", tensors);
  check_tag("recv", tag);
  check_value(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
              "recv: cannot write to an expanded tensor: several of its elements share memory; clone() it first");
  auto work = c10::make_intrusive<RecvWork>(next_call("recv", timeout_, source), endpoint_, tensor, source, tag);
  Engine::get().submit(work, /*background=*/true);
  return work;
}

c10d::ErrorType ProcessGroupCcl::getError() {
  return Engine::get().usable() ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

void ProcessGroupCcl::shutdown() {
  constexpr Milliseconds kLimit{5000};
  auto& engine = Engine::get();
  if (!endpoint_ || endpoint_->aborted() || !engine.usable()) return;
  auto call = next_call("shutdown", kLimit);
  engine.submit(c10::make_intrusive<DisconnectWork>(std::move(call), std::exchange(endpoint_, nullptr)),
                /*background=*/true);
}

void ProcessGroupCcl::abort() {
  if (!endpoint_) return;
  endpoint_->abort();
  Engine::get().abort(*group_);
}

}  // namespace cpudist
