// Collectives and messages between the ranks of one machine through memory that they share.
#pragma once

#include <string>

#include "../transport.hpp"

namespace cpudist::shared_memory {

// Collective over the group, whose ranks must all be on one machine. Either all ranks get a transport, or none does and
// `why` says in one line why not, the same on all ranks. Throws TransportError when a rank does not come.
TransportPtr create(const Group& group, std::string& why);

}  // namespace cpudist::shared_memory
