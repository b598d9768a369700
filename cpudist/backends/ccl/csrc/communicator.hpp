// A oneCCL communicator with what orders the calls on it.
#pragma once

#include <deque>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mailbox.hpp"
#include "operation.hpp"

namespace cpudist {

class Communicator {
 public:
  // Meets the other ranks through the store; ends the process when oneCCL is still at it after `timeout`.
  // `most_under_way`: how many oneCCL calls may be under way at once.
  Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
               size_t most_under_way);
  ~Communicator();

  const ccl::communicator& raw() const { return *raw_; }
  Mailbox& mailbox() { return *mailbox_; }

  // Whether this collective may issue its next call now.
  bool may_issue(const Operation* collective) const {
    return turn.front() == collective && under_way < most_under_way_;
  }

  // Collectives that still have pieces to issue, oldest first. oneCCL matches the calls of a communicator by their
  // order, so all of one collective's pieces go before the next one's.
  std::deque<const Operation*> turn;
  size_t under_way = 0;

 private:
  std::unique_ptr<ccl::communicator> raw_;
  std::unique_ptr<Mailbox> mailbox_;
  size_t most_under_way_;
};

}  // namespace cpudist
