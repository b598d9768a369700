// Which transport carries what.
#pragma once

#include <array>
#include <atomic>

#include "transport.hpp"

namespace cpudist {

// What a process has handed to one transport: calls, and bytes of the larger buffer of each.
struct Traffic {
  std::string transport;
  uint64_t calls;
  uint64_t bytes;
};

// Since the process started, over all groups; only transports that were used.
std::vector<Traffic> traffic();

// Makes the transport of a group; all ranks of it call this. Throws TransportError.
TransportPtr make_transport(const Group& group);

}  // namespace cpudist
