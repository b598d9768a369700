#include "transport_selection.hpp"

#include <algorithm>
#include <numeric>

#include "mpi/transport.hpp"
#include "oneccl/transport.hpp"
#include "shared_memory/transport.hpp"

namespace cpudist {

namespace {

// Creates the shared-memory transport of this rank's machine. If this fails on any machine, all ranks of the group get
// null, and the reason in `why`.
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

// Creates a transport between any ranks, on the same machine or not.
TransportPtr make_general(const Group& group, bool mpi, std::unique_ptr<Hierarchy> hierarchy = nullptr) {
  return mpi ? mpi::create(group, std::move(hierarchy)) : oneccl::create(group, std::move(hierarchy));
}

TransportPtr make_across_machines(const Group& group, const Placement& place, bool mpi, std::string& why) {
  auto inside = place.even ? share_memory_on_each_machine(group, place, why) : nullptr;
  if (!inside) return make_general(group, mpi);
  PrefixStore store(group.store, "across/" + std::to_string(place.local_rank));
  std::vector<int> nodes(place.node_count);
  std::iota(nodes.begin(), nodes.end(), 0);
  auto across = make_general({place.node, place.node_count, nodes, group.timeout, &store, group.wire}, mpi);
  auto whole = group;
  whole.wire = Wire::kFloat32;
  return make_general(whole, mpi, std::make_unique<Hierarchy>(std::move(inside), std::move(across), place));
}

}  // namespace

// The choice depends only on values that are the same on all ranks, so ranks cannot choose differently.
TransportPtr make_transport(const Group& group, Choice choice, std::string& warning) {
  const Placement place(group.nodes, group.rank);
  const bool one_rank_each = place.node_count > 1 && place.even && place.local_size == 1;
  if (!choice.shared_memory || one_rank_each) return make_general(group, choice.mpi);
  std::string why;
  auto transport =
      place.node_count > 1 ? make_across_machines(group, place, choice.mpi, why) : shared_memory::create(group, why);
  if (!why.empty()) warning = "not using shared memory inside a machine: " + why;
  return transport ? std::move(transport) : make_general(group, choice.mpi);
}

}  // namespace cpudist
