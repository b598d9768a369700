// Stands in for oneCCL in a module that is compiled without it.
#include <stdexcept>

#include "transport.hpp"

namespace cpudist::oneccl {

std::string library_version() { return ""; }

void start() { throw std::runtime_error("this module was compiled without oneCCL; set CPUDIST_TRANSPORT=mpi"); }

TransportPtr create(const Group&, std::unique_ptr<Hierarchy>) {
  start();
  return nullptr;
}

}  // namespace cpudist::oneccl
