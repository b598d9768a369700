// Releasing Python's lock (GIL). A thread that waits for the engine's lock must not hold it, because the thread that
// holds the engine's lock may need it.
#pragma once

#include <optional>

#include <torch/csrc/utils/pybind.h>

namespace cpudist {

// Releases the GIL for its lifetime if this thread holds it. torch holds it in some calls and not in others.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace cpudist
