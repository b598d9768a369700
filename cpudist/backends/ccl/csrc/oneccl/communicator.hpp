// A oneCCL communicator, and the order of the calls on it.
#pragma once

#include <deque>

#include <oneapi/ccl.hpp>

#include "../rendezvous.hpp"

namespace cpudist::oneccl {

class Communicator {
 public:
  // Creates it with the other ranks through the group's store. Waits for them without a limit.
  explicit Communicator(const Group& group);
  // The ranks free it together when they next create one. Where they are now, they may wait for each other elsewhere,
  // and MPI_Comm_free may wait for all ranks.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const ccl::communicator& raw() const { return *raw_; }
  int rank() const { return raw_->rank(); }
  int size() const { return raw_->size(); }

  // Whether this request may issue its next call now.
  bool may_issue(const Request* request) const { return order.front() == request && in_flight_ < most_in_flight_; }

  // The most that a message, or a rank's part of an alltoall, has in one call.
  size_t round_bytes() const { return round_bytes_; }

  // Starts a call at once where several may be in flight. oneCCL reorders its queue when a call completes, and MPI
  // matches the calls that oneCCL passes on by the order in which they were started.
  ccl::event issue(ccl::event call) {
    if (most_in_flight_ > 1) call.test();
    ++in_flight_;
    return call;
  }

  // Whether an issued call is complete; not asked again after that.
  bool complete(ccl::event& call) {
    if (!call.test()) return false;
    --in_flight_;
    return true;
  }

  // Requests that still have calls to issue, oldest first. oneCCL matches the calls of a communicator by their order,
  // so all calls of one request are issued before those of the next.
  std::deque<const Request*> order;

 private:
  std::string id_;  // the same on all ranks, and no other communicator's
  std::unique_ptr<ccl::communicator> raw_;
  size_t most_in_flight_;
  size_t in_flight_ = 0;
  size_t round_bytes_;
};

}  // namespace cpudist::oneccl
