// A oneCCL communicator, and the order of the calls on it.
#pragma once

#include <oneapi/ccl.hpp>

#include "../pieces.hpp"
#include "../rendezvous.hpp"

namespace cpudist::oneccl {

// A oneCCL call in flight. co_await waits until it is complete.
class InFlight final : public Condition {
 public:
  explicit InFlight(ccl::event call) : call_(std::move(call)) {}
  bool holds() override { return call_.test(); }

 private:
  ccl::event call_;
};

class Communicator {
 public:
  // Creates the communicator with the other ranks through the group's store. Waits for them without a time limit.
  explicit Communicator(const Group& group);
  // Does not free the communicator, because MPI_Comm_free may wait for all ranks, and these may now wait for each other
  // elsewhere. The ranks free it together when they next create one.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const ccl::communicator& raw() const { return *raw_; }
  int rank() const { return raw_->rank(); }
  int size() const { return raw_->size(); }

  // Most bytes that a message, or a rank's part of an alltoall, has in one call.
  size_t round_bytes() const { return round_bytes_; }

  // Makes the call start at once if several may be in flight. oneCCL reorders its queue when a call completes, but MPI
  // matches the calls that oneCCL passes on in the order in which they start.
  InFlight started(ccl::event call) const {
    if (several_) call.test();
    return InFlight(std::move(call));
  }

  // oneCCL matches the calls of a communicator by their order.
  CallOrder order;

 private:
  std::string id_;  // the same on all ranks; no other communicator has it
  std::unique_ptr<ccl::communicator> raw_;
  bool several_;  // calls may be in flight at once
  size_t round_bytes_;
};

}  // namespace cpudist::oneccl
