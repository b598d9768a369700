// MPI as a transport.
#pragma once

#include "../hierarchy.hpp"
#include "../rendezvous.hpp"

namespace cpudist::mpi {

// Creates the transport; all ranks of the group call this. `hierarchy`, which may be null, does the allreduces that it
// supports.
TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy = nullptr);

}  // namespace cpudist::mpi
