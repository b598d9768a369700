// oneCCL as a transport. A module that is compiled without oneCCL has absent.cpp instead.
#pragma once

#include <string>

#include "../hierarchy.hpp"
#include "../rendezvous.hpp"

namespace cpudist::oneccl {

// Starts oneCCL, which reads its settings from the environment.
void start();

// Returns oneCCL's version; empty if the module was compiled without it.
std::string library_version();

// Creates the transport; all ranks of the group call this, with no other oneCCL call in progress. `hierarchy`, which
// may be null, does the allreduces that it supports.
TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy = nullptr);

}  // namespace cpudist::oneccl
