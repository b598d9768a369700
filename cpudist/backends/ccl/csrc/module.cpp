// The extension module `cpudist_ccl`, the interface of the backend to Python.
#include <torch/csrc/python_headers.h>

#include <torch/csrc/utils/pybind.h>

#include <iostream>

#include "computing_threads.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "mpi/library.hpp"
#include "oneccl/transport.hpp"
#include "process_group.hpp"
#include "store.hpp"
#include "traffic.hpp"
#include "transport_selection.hpp"

namespace py = pybind11;

namespace {

using cpudist::Engine;
using cpudist::Milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

Milliseconds milliseconds(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1000)); }

cpudist::Wire wire_of(const std::string& name) {
  if (name == "int8") return cpudist::Wire::kInt8;
  return name == "bf16" ? cpudist::Wire::kBFloat16 : cpudist::Wire::kFloat32;
}

// Creates a process group; all its ranks call this. `store` belongs to this group alone. nodes[r]: the machine of rank
// r. `mpi`: MPI instead of oneCCL. `wire`: how the group's allreduces of float32 cross the network, "float32", "bf16"
// or "int8". `round_bytes` and `mpi_slots`: see Group.
c10::intrusive_ptr<c10d::Backend> create_group(const StorePtr& store, int rank, const std::vector<int>& nodes,
                                               double timeout_seconds, const std::string& name, bool shared_memory,
                                               bool mpi, const std::string& wire, size_t round_bytes,
                                               size_t mpi_slots) {
  cpudist::C10dStore group_store(store);
  const int size = static_cast<int>(nodes.size());
  const auto timeout = milliseconds(timeout_seconds);
  std::string warning;
  const cpudist::Group group{rank, size, nodes, timeout, &group_store, wire_of(wire), round_bytes, mpi_slots};
  const cpudist::Choice choice{shared_memory, mpi};
  auto transport = Engine::get().exclusively([&] { return cpudist::make_transport(group, choice, warning); });
  if (rank == 0 && !warning.empty()) {
    std::cerr << "cpudist: warning: " + warning + "\n" << std::flush;
  }
  return c10::make_intrusive<cpudist::ProcessGroupCcl>(std::move(transport), rank, size, timeout,
                                                       cpudist::GroupState{name, !group.on_one_node()});
}

cpudist::ProcessGroupCcl& our_group(const c10::intrusive_ptr<c10d::Backend>& group) {
  auto* const ours = dynamic_cast<cpudist::ProcessGroupCcl*>(group.get());
  cpudist::check_type(ours, "not a process group of cpudist's ccl backend; pass one that is");
  return *ours;
}

// Sets the timeout of a ccl group, or of torch's wrapper around one (TORCH_DISTRIBUTED_DEBUG=DETAIL). Before torch 2.9
// the base class has no setTimeout, and wrappers are refused.
template <typename Backend>
void set_timeout(const c10::intrusive_ptr<Backend>& group, double seconds) {
  if constexpr (requires { group->setTimeout(milliseconds(seconds)); }) {
    group->setTimeout(milliseconds(seconds));
  } else {
    our_group(group).setTimeout(milliseconds(seconds));
  }
}

// Averages a tensor over a ccl group and keeps the rounding errors of its wire in `residual`; returns the work.
c10::intrusive_ptr<c10d::Work> allreduce_with_residual(const c10::intrusive_ptr<c10d::Backend>& group,
                                                       const at::Tensor& tensor, const at::Tensor& residual) {
  return our_group(group).allreduce_with_residual(tensor, residual);
}

// Returns the bytes of allreduces that crossed the network in another format: as float32, and in that format.
py::tuple converted() { return py::make_tuple(cpudist::converted_from.load(), cpudist::converted_to.load()); }

// Returns {transport: (calls, bytes)} for the transports that were used.
py::dict traffic() {
  py::dict result;
  const auto add = [&](const char* transport, const cpudist::Traffic& carried) {
    if (carried.calls > 0) result[transport] = py::make_tuple(carried.calls.load(), carried.bytes.load());
  };
  add("oneccl", cpudist::oneccl_traffic);
  add("mpi", cpudist::mpi_traffic);
  add("shared_memory", cpudist::shared_memory_traffic);
  return result;
}

py::dict to_python(const cpudist::PendingCall& pending) {
  const auto& [call, bytes, like, seconds] = pending;
  py::dict result;
  result["name"] = call.name;
  result["group"] = call.group->name;
  if (call.peer) {
    result["peer"] = *call.peer;
  } else {
    result["sequence"] = call.sequence;
  }
  result["bytes"] = bytes;
  if (like) {
    result["dtype"] = c10::getDtypeNames(like->scalar_type()).first;
    result["shape"] = py::tuple(py::cast(like->sizes().vec()));
  }
  result["seconds"] = seconds;
  return result;
}

// Returns (calls in flight, oldest first; group -> name and number of its last completed collective), or None while a
// call blocks inside a transport.
py::object calls() {
  constexpr Milliseconds kLimit{200};
  std::optional<cpudist::Snapshot> found;
  {
    const py::gil_scoped_release unlocked;
    found = Engine::get().snapshot(kLimit);
  }
  if (!found) return py::none();
  py::list pending;
  for (const auto& call : found->pending) pending.append(to_python(call));
  py::dict last;
  for (const auto& group : found->groups) {
    if (group.last_name) last[py::str(group.name)] = py::make_tuple(group.last_name, group.last_sequence);
  }
  return py::make_tuple(pending, last);
}

}  // namespace

PYBIND11_MODULE(cpudist_ccl, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("start", &cpudist::oneccl::start, Unlocked());
  module.def("use_mpi", &cpudist::mpi::use, py::arg("library"));
  module.def("create_group", &create_group, py::arg("store"), py::arg("rank"), py::arg("nodes"),
             py::arg("timeout_seconds"), py::arg("name"), py::arg("shared_memory"), py::arg("mpi"), py::arg("wire"),
             py::arg("round_bytes") = size_t{1} << 30, py::arg("mpi_slots") = 15, Unlocked());
  module.def("allreduce_with_residual", &allreduce_with_residual, py::arg("group"), py::arg("tensor"),
             py::arg("residual"), Unlocked());
  module.def("converted", &converted);
  module.def("set_timeout", &set_timeout<c10d::Backend>, py::arg("group"), py::arg("seconds"));
  module.def(
      "start_thread", [](bool polls, double nap) { Engine::get().start_thread(polls, milliseconds(nap)); },
      py::arg("polls"), py::arg("nap_seconds") = 0.01, Unlocked());
  module.def("lend_computing_threads", &cpudist::lend_computing_threads, py::arg("cores"));
  module.def("bytes_of_threads", &cpudist::bytes_of_threads);
  module.def("polls", [] { return Engine::get().polls(); });
  module.def("usable", [] { return Engine::get().usable(); });
  module.def("progress", [] { Engine::get().poll(); }, Unlocked());
  module.def(
      "drain", [](double seconds) { Engine::get().drain(milliseconds(seconds)); }, py::arg("seconds") = 0.0,
      Unlocked());
  module.def("close", [] { Engine::get().close(); }, Unlocked());
  module.def("blocked_seconds", [] { return Engine::get().blocked_seconds(); });
  module.def("traffic", &traffic);
  module.def("calls", &calls);
  module.def("library_version", &cpudist::oneccl::library_version);
}
