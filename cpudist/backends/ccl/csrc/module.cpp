// The extension module `cpudist_ccl`: what Python needs of the backend.
#include <torch/csrc/python_headers.h>

#include <torch/csrc/utils/pybind.h>

#include <iostream>

#include "choice.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "oneccl/baseline.hpp"
#include "oneccl/provider.hpp"
#include "process_group.hpp"
#include "store.hpp"

namespace py = pybind11;

namespace {

using cpudist::Engine;
using cpudist::Milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

Milliseconds milliseconds(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1000)); }

// `store` belongs to this group alone; all ranks of the group call this, or none can. nodes[r]: the machine of rank r.
// numa_nodes: as in transport.hpp.
c10::intrusive_ptr<c10d::Backend> create_group(const StorePtr& store, int rank, const std::vector<int>& nodes,
                                               const std::vector<int>& numa_nodes, double timeout_seconds,
                                               const std::string& name, bool shared_memory) {
  cpudist::C10dStore group_store(store);
  const int size = static_cast<int>(nodes.size());
  const auto timeout = milliseconds(timeout_seconds);
  std::string warning;
  const cpudist::Group group{rank, size, nodes, timeout, &group_store, numa_nodes};
  auto transport = Engine::get().exclusively([&] { return cpudist::make_transport(group, shared_memory, warning); });
  if (rank == 0 && !warning.empty()) {
    std::cerr << "cpudist: warning: " + warning + "\n" << std::flush;
  }
  return c10::make_intrusive<cpudist::ProcessGroupCcl>(std::move(transport), rank, size, timeout,
                                                       cpudist::CallGroup{name, !group.on_one_node()});
}

// torch hands groups back as their base class, which takes no timeout before torch 2.9.
void set_timeout(const c10::intrusive_ptr<c10d::Backend>& group, double seconds) {
  auto* const ours = dynamic_cast<cpudist::ProcessGroupCcl*>(group.get());
  cpudist::check_type(ours, "not a process group of cpudist's ccl backend");
  ours->setTimeout(milliseconds(seconds));
}

std::vector<double> allreduce_baseline(const StorePtr& store, int rank, int size, size_t bytes, bool bfloat16,
                                       size_t buffers, size_t repeats, size_t piece_bytes) {
  cpudist::C10dStore group_store(store);
  const cpudist::Group group{rank, size, std::vector<int>(size), std::chrono::minutes(5), &group_store};
  return Engine::get().exclusively(
      [&] { return cpudist::oneccl::allreduce_baseline(group, {bytes, bfloat16, buffers, repeats, piece_bytes}); });
}

// Transport -> (calls, bytes).
py::dict traffic() {
  py::dict result;
  for (const auto& used : cpudist::traffic()) result[py::str(used.transport)] = py::make_tuple(used.calls, used.bytes);
  return result;
}

py::dict to_python(const cpudist::CallUnderWay& under_way) {
  const auto& [call, bytes, like, seconds] = under_way;
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

// (calls under way, oldest first; group -> name and number of its last completed collective); None: not known now.
py::object calls() {
  constexpr Milliseconds kLimit{200};
  std::optional<cpudist::Calls> found;
  {
    const py::gil_scoped_release unlocked;
    found = Engine::get().calls(kLimit);
  }
  if (!found) return py::none();
  py::list under_way;
  for (const auto& call : found->under_way) under_way.append(to_python(call));
  py::dict last;
  for (const auto& group : found->groups) {
    if (group.last_name) last[py::str(group.name)] = py::make_tuple(group.last_name, group.last_sequence);
  }
  return py::make_tuple(under_way, last);
}

}  // namespace

PYBIND11_MODULE(cpudist_ccl, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("start", &cpudist::oneccl::start, Unlocked());
  module.def("create_group", &create_group, py::arg("store"), py::arg("rank"), py::arg("nodes"), py::arg("numa_nodes"),
             py::arg("timeout_seconds"), py::arg("name"), py::arg("shared_memory"), Unlocked());
  module.def("set_timeout", &set_timeout, py::arg("group"), py::arg("seconds"));
  module.def("start_thread", [](bool polls) { Engine::get().start_thread(polls); }, py::arg("polls"), Unlocked());
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
  module.def("providers", &cpudist::oneccl::opened_providers);
  module.def("allreduce_baseline", &allreduce_baseline, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("bytes"), py::arg("bfloat16"), py::arg("buffers"), py::arg("repeats"), py::arg("piece_bytes"),
             Unlocked());
  module.def("library_version", &cpudist::oneccl::library_version);
}
