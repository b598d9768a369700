// The extension module `cpudist_ccl`: what Python needs of the backend.
#include <torch/csrc/python_headers.h>

#include <torch/csrc/utils/pybind.h>

#include <iostream>
#include <sstream>

#include "engine.hpp"
#include "process_group.hpp"
#include "raw.hpp"

namespace py = pybind11;

namespace {

// Starts oneCCL without its line for each setting that is not at its default: it writes those to standard output, and
// before it has read CCL_LOG_LEVEL.
void start() {
  std::stringstream output;
  auto* const screen = std::cout.rdbuf(output.rdbuf());
  try {
    ccl::init();
  } catch (...) {
    std::cout.rdbuf(screen);
    throw;
  }
  std::cout.rdbuf(screen);
  for (std::string line; std::getline(output, line);) {
    if (line.find("|CCL_WARN| value of ") == std::string::npos) std::cout << line << std::endl;
  }
}

c10::intrusive_ptr<c10d::Backend> create_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               double timeout_seconds, const std::string& group,
                                               size_t most_under_way) {
  const cpudist::Milliseconds timeout(static_cast<int64_t>(timeout_seconds * 1000));
  return c10::make_intrusive<cpudist::ProcessGroupCcl>(store, rank, size, timeout, group, most_under_way);
}

// torch hands groups back as their base class, which takes no timeout before torch 2.9.
void set_timeout(const c10::intrusive_ptr<c10d::Backend>& group, double seconds) {
  auto* const ours = dynamic_cast<cpudist::ProcessGroupCcl*>(group.get());
  TORCH_CHECK(ours, "not a process group of cpudist's ccl backend");
  ours->setTimeout(cpudist::Milliseconds(static_cast<int64_t>(seconds * 1000)));
}

}  // namespace

PYBIND11_MODULE(cpudist_ccl, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("start", &start, Unlocked());
  module.def("create_group", &create_group, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout_seconds"), py::arg("group"), py::arg("most_under_way"), Unlocked());
  module.def("set_timeout", &set_timeout, py::arg("group"), py::arg("seconds"));
  module.def("start_thread", [] { cpudist::Engine::get().start_thread(); }, Unlocked());
  module.def("has_thread", [] { return cpudist::Engine::get().has_thread(); });
  module.def("usable", [] { return cpudist::Engine::get().usable(); });
  module.def("drain", [] { cpudist::Engine::get().drain(std::chrono::seconds(5)); }, Unlocked());
  module.def("close", [] { cpudist::Engine::get().close(); }, Unlocked());
  module.def("blocked_seconds", [] { return cpudist::Engine::get().blocked_seconds(); });
  module.def("raw_allreduce", &cpudist::raw_allreduce, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("bytes"), py::arg("repeats"), py::arg("piece_bytes"), Unlocked());
  module.def("library_version", [] { return std::string(ccl::get_library_version().full); });
}
