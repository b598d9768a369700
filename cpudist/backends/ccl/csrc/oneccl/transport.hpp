// oneCCL as a transport.
#pragma once

#include "../rendezvous.hpp"

namespace cpudist::oneccl {

// Creates the transport; all ranks of the group call this, with no other oneCCL call in progress. Ends the process
// after the group's timeout.
TransportPtr create(const Group& group);

}  // namespace cpudist::oneccl
