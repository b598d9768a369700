// Which transport carries the messages of a group.
#pragma once

#include "rendezvous.hpp"

namespace cpudist {

// Creates the transport of a group. All ranks of the group call this with the same `shared_memory`, which says whether
// our own transport may be used inside a machine. Where it may but cannot, `warning` says why in one line, the same on
// all ranks. Throws TransportError.
TransportPtr make_transport(const Group& group, bool shared_memory, std::string& warning);

}  // namespace cpudist
