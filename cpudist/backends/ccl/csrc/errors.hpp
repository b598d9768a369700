// Errors that become Python exceptions. torch's own macros would add C++ stack frames to the message.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

namespace cpudist {

template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  text << "ccl: ";
  (text << ... << parts);
  return text.str();
}

// ValueError: an argument that cannot be used.
template <typename... Parts>
[[noreturn]] void value_error(const Parts&... parts) {
  throw std::invalid_argument(message(parts...));
}

template <typename... Parts>
void check_value(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    value_error(parts...);
}

// TypeError: an object of another class, or a tensor whose device, layout or element type is not supported.
template <typename... Parts>
void check_type(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw pybind11::type_error(message(parts...));
}

// DistBackendError: communication has failed.
inline c10::DistBackendError backend_error(const std::string& text) {
  return c10::DistBackendError("ccl: " + text, /*backtrace=*/nullptr);
}

}  // namespace cpudist
