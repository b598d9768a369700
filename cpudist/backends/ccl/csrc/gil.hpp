// Releases Python's global lock (GIL). A thread must not hold the GIL while it waits for the engine's lock, because the
// thread that holds the engine's lock may need the GIL.
#pragma once

#include <optional>

#include <torch/csrc/utils/pybind.h>

namespace cpudist {

// Releases the GIL for its lifetime if this thread holds it. Some of torch's calls into the backend hold the GIL.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace cpudist
