// oneCCL as a transport.
#pragma once

#include "../hierarchy.hpp"
#include "../rendezvous.hpp"

namespace cpudist::oneccl {

// Creates the transport; all ranks of the group call this, with no other oneCCL call in progress. `hierarchy` does the allreduces that it can, where there is one.
TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy = nullptr);

}  // namespace cpudist::oneccl
