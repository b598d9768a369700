// A oneCCL communicator, and the order of the calls on it.
#pragma once

#include <deque>

#include <oneapi/ccl.hpp>

#include "../transport.hpp"

namespace cpudist::oneccl {

// Starts oneCCL. It reads its settings from the environment.
void start();

std::string library_version();

class Communicator {
 public:
  // Meets the other ranks through the group's store; ends the process when oneCCL is still at it after the timeout.
  explicit Communicator(const Group& group);

  const ccl::communicator& raw() const { return *raw_; }
  int rank() const { return raw_->rank(); }
  int size() const { return raw_->size(); }

  // Whether this request may issue its next call now.
  bool may_issue(const Request* request) const { return order.front() == request && under_way < most_under_way_; }

  // Whether several calls may be under way at once.
  bool overlaps() const { return most_under_way_ > 1; }

  // Requests that still have calls to issue, oldest first. oneCCL matches the calls of a communicator by their order,
  // so all of one request's calls go before the next one's.
  std::deque<const Request*> order;
  size_t under_way = 0;

 private:
  std::unique_ptr<ccl::communicator> raw_;
  size_t most_under_way_;
};

}  // namespace cpudist::oneccl
