// A transport between the ranks of one machine through memory that they share.
#pragma once

#include <string>

#include "../rendezvous.hpp"

namespace cpudist::shared_memory {

// Creates the transport; all ranks of the group call this and must be on one machine. Either all ranks get a transport,
// or all get null and the reason in `why`, in one line and the same on all ranks. Throws TransportError after the
// group's timeout.
TransportPtr create(const Group& group, std::string& why);

}  // namespace cpudist::shared_memory
