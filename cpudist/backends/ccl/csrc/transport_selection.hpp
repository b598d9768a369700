// Which transport carries the messages of a group.
#pragma once

#include "rendezvous.hpp"

namespace cpudist {

// The transports that a group may use.
struct Choice {
  bool shared_memory;  // inside a machine
  bool mpi;            // MPI instead of oneCCL
};

// Creates the transport of a group. All ranks of the group call this with the same choice. If `choice` allows shared
// memory but it cannot be set up, `warning` gets the reason, the same line on all ranks. Throws TransportError.
TransportPtr make_transport(const Group& group, Choice choice, std::string& warning);

}  // namespace cpudist
