// The messages of one group over MPI: its communicator, the tags of its calls, and messages in flight.
#pragma once

#include <deque>
#include <vector>

#include "../coroutine.hpp"
#include "../rendezvous.hpp"
#include "library.hpp"

namespace cpudist::mpi {

class Channel {
 public:
  // Creates the communicator with the other ranks, which wait for each other without a limit.
  explicit Channel(const Group& group);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Handle communicator() const { return communicator_; }
  // The most bytes of a message: MPI counts in 32 bits.
  size_t most_bytes() const { return most_bytes_; }

  // The tag of messages between two ranks outside of collectives.
  int tag_of_messages() const { return first_tag_; }

  // Whether this request may start its next call now. Calls start in one order on all ranks.
  bool may_start(const Request* request) const { return order.front() == request && in_flight_ < kMostInFlight; }
  // Starts a call and returns its tag.
  int start() {
    ++in_flight_;
    return first_tag_ + 1 + static_cast<int>(started_++ % kTags);
  }
  void finish() { --in_flight_; }

  // Requests that still have calls to start, oldest first.
  std::deque<const Request*> order;

 private:
  static constexpr size_t kMostInFlight = 8;  // enough to fill a link while pieces are added; each holds a copy
  // Tags are used in turn. Two calls may have the same tag only if one is complete here before the other starts; MPI
  // then matches their messages by their order.
  static constexpr uint64_t kTags = 127;

  int rank_;
  int ranks_;
  size_t most_bytes_;
  Handle communicator_;
  int first_tag_;
  size_t in_flight_ = 0;
  uint64_t started_ = 0;
};

// A message of a peer is none of this call: the ranks make different calls.
struct OtherCall : TransportError {
  OtherCall(int peer, const std::string& what) : TransportError(what), rank(peer) {}
  int rank;
};

// Messages in flight. co_await waits until all of them are complete.
class Transfers final : public Condition {
 public:
  Transfers(const Channel& channel, int tag) : channel_(channel), tag_(tag) {}

  void send(int to, const void* data, size_t bytes);
  void receive(int from, void* data, size_t bytes);
  bool holds() override;

 private:
  const Channel& channel_;
  const int tag_;
  struct Message {
    Handle request;
    int peer;
    int bytes;
    bool received;
  };

  void check_length(const Message& message, const Status& status) const;

  std::vector<Message> messages_;
};

}  // namespace cpudist::mpi
