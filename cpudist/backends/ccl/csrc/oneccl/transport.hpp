// oneCCL as a transport.
#pragma once

#include "../transport.hpp"

namespace cpudist::oneccl {

// All ranks of the group call this, with nothing else going on in oneCCL. Ends the process at the group's timeout.
TransportPtr create(const Group& group);

}  // namespace cpudist::oneccl
