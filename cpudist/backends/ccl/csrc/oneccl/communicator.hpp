// A oneCCL communicator, and the order of the calls on it.
#pragma once

#include <deque>

#include <oneapi/ccl.hpp>

#include "../rendezvous.hpp"

namespace cpudist::oneccl {

// Starts oneCCL, which reads its settings from the environment.
void start();

std::string library_version();

class Communicator {
 public:
  // Creates it with the other ranks through the group's store. Ends the process if that takes longer than the timeout.
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
  bool may_issue(const Request* request) const { return order.front() == request && in_flight < most_in_flight_; }

  // The most that a message, or a rank's part of an alltoall, has in one call.
  size_t round_bytes() const { return round_bytes_; }

  // Whether several calls may be in flight at once.
  bool overlaps() const { return most_in_flight_ > 1; }

  // Requests that still have calls to issue, oldest first. oneCCL matches the calls of a communicator by their order,
  // so all calls of one request are issued before those of the next.
  std::deque<const Request*> order;
  size_t in_flight = 0;

 private:
  std::string id_;  // the same on all ranks, and no other communicator's
  std::unique_ptr<ccl::communicator> raw_;
  size_t most_in_flight_;
  size_t round_bytes_;
};

}  // namespace cpudist::oneccl
