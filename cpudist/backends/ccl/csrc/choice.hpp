// Which transport carries what.
#pragma once

#include "transport.hpp"

namespace cpudist {

// What this process has handed to one transport: calls, and bytes of the larger buffer of each.
struct Traffic {
  std::string transport;
  uint64_t calls;
  uint64_t bytes;
};

// Since the process started, over all groups; only transports that were used.
std::vector<Traffic> traffic();

// Makes the transport of a group; all ranks of it call this with the same `shared_memory`, which is whether ours may be
// used. Where it may but cannot, or not by NUMA nodes, `warning` says so in one line, the same on all ranks. Throws
// TransportError.
TransportPtr make_transport(const Group& group, bool shared_memory, std::string& warning);

}  // namespace cpudist
