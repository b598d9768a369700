// Python's lock: whoever waits for the engine's must not hold it, because the engine's holder may want it.
#pragma once

#include <optional>

#include <torch/csrc/utils/pybind.h>

namespace cpudist {

// Gives the GIL up where this thread holds it, as it does in some calls that torch makes and not in others.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace cpudist
