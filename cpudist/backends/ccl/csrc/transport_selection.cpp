#include "transport_selection.hpp"

#include <algorithm>
#include <numeric>

#include "oneccl/transport.hpp"
#include "shared_memory/transport.hpp"

namespace cpudist {

namespace {

// Creates the shared memory of this rank's machine. Returns null, with the reason in `why`, on all ranks of the group
// where it fails on any machine.
TransportPtr share_memory_on_each_machine(const Group& group, const Placement& place, std::string& why) {
  PrefixStore store(group.store, "inside/" + std::to_string(place.node));
  std::string own;
  auto transport = shared_memory::create(
      {place.local_rank, place.local_size, std::vector<int>(place.local_size), group.timeout, &store}, own);
  const auto reasons = all_gather(group, "inside", own);
  const auto reason = std::find_if(reasons.begin(), reasons.end(), [](const auto& text) { return !text.empty(); });
  if (reason == reasons.end()) return transport;
  why = *reason;
  return nullptr;
}

TransportPtr make_across_machines(const Group& group, const Placement& place, std::string& why) {
  auto inside = place.even ? share_memory_on_each_machine(group, place, why) : nullptr;
  if (!inside) return oneccl::create(group);
  PrefixStore store(group.store, "across/" + std::to_string(place.local_rank));
  std::vector<int> nodes(place.node_count);
  std::iota(nodes.begin(), nodes.end(), 0);
  auto across = oneccl::create({place.node, place.node_count, nodes, group.timeout, &store, group.wire});
  auto whole = group;
  whole.wire = Wire::kFloat32;
  return oneccl::create(whole, std::make_unique<Hierarchy>(std::move(inside), std::move(across), place));
}

}  // namespace

// The choice depends only on values that are the same on all ranks, so ranks cannot choose differently.
TransportPtr make_transport(const Group& group, bool shared_memory, std::string& warning) {
  const Placement place(group.nodes, group.rank);
  const bool one_rank_each = place.node_count > 1 && place.even && place.local_size == 1;
  if (!shared_memory || one_rank_each) return oneccl::create(group);
  std::string why;
  auto transport = place.node_count > 1 ? make_across_machines(group, place, why) : shared_memory::create(group, why);
  if (!why.empty()) warning = "not using shared memory inside a machine: " + why;
  return transport ? std::move(transport) : oneccl::create(group);
}

}  // namespace cpudist
