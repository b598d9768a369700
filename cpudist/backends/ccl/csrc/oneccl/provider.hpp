// Which of libfabric's providers oneCCL has opened where it goes over libfabric itself; over MPI, MPI knows.
#pragma once

#include <set>
#include <string>

namespace cpudist::oneccl {

// By libfabric's names ("tcp", "shm"); none before the first communicator.
std::set<std::string> opened_providers();

}  // namespace cpudist::oneccl
