// The messages of one group over MPI: its communicator, the tags of its calls, and messages in flight.
//
// The calls of a group are numbered in the order in which they start, which is the same on all ranks. A message's tag
// has the number of the group's channel, that of the call, and a hash of the call's signature and the message's length:
//
//   tag = (channel * kSlots + slot) * hashes + hash      slot: 0 for messages outside of collectives,
//                                                              1 + number % slots for calls
//
// Why a message is never taken for one of another call: call n starts only when call n - slots and, by induction, all
// before it are complete on this rank. So of two calls with one tag every rank posts all messages of the earlier one
// first, and MPI matches the messages of a tag between two ranks in that order. Within a call each algorithm sends to a
// peer in the order in which that peer receives. Ranks whose calls or lengths differ have different tags and wait.
//
// Why no rank waits for ever: let n be the lowest call that some rank has yet to complete. All ranks have completed the
// calls before n. On a rank that has yet to start n nothing is in flight, because calls start in their order, so it may
// start n. What n waits for belongs to n.
#pragma once

#include <vector>

#include "../pieces.hpp"
#include "../rendezvous.hpp"
#include "../signature.hpp"
#include "library.hpp"

namespace cpudist::mpi {

constexpr int kSlots = 16;

class Channel {
 public:
  // Creates the communicator with the other ranks; the ranks wait for each other without a time limit.
  explicit Channel(const Group& group);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Handle communicator() const { return communicator_; }
  // The most bytes of a message: MPI counts in 32 bits.
  size_t most_bytes() const { return most_bytes_; }

  // The tag of messages between two ranks outside of collectives.
  int tag_of_messages() const { return number_ * kSlots * hashes_; }

  // The tag of the messages of a call.
  int tag_of_call(uint64_t number, const Signature& signature) const {
    const int slot = 1 + static_cast<int>(number % slots_);
    return add_hash((number_ * kSlots + slot) * hashes_, signature.bits());
  }

  // Returns the tag with the number added to its hash.
  int add_hash(int tag, uint64_t number) const {
    const auto hashes = static_cast<uint64_t>(hashes_);
    const auto hash = (static_cast<uint64_t>(tag) + hash_of({number})) % hashes;
    return tag / hashes_ * hashes_ + static_cast<int>(hash);
  }
  bool same_slot(int tag, int other) const { return tag / hashes_ == other / hashes_; }

  CallOrder order;

 private:
  int rank_;
  int ranks_;
  size_t most_bytes_;
  uint64_t slots_;
  Handle communicator_;
  int number_;  // among the channels of the communicator
  int hashes_;  // number of different hashes in a tag
};

// Messages in flight. co_await waits until all of them are complete. Empty messages are sent, too.
//
// holds() throws MPI's errors outside of the coroutine, whose frame has memory that MPI may still write to.
class Transfers final : public Condition {
 public:
  Transfers(const Channel& channel, int tag) : channel_(channel), tag_(tag) {}

  void send(int to, const void* data, size_t bytes);
  void receive(int from, void* data, size_t bytes);
  bool holds() override;

 private:
  struct Message {
    Handle request;
    int peer;
    int tag;
  };

  template <typename Start>
  void in_rounds(std::vector<Message>& messages, int peer, size_t bytes, Start start);
  void look_for_other_call(const Message& awaited);

  const Channel& channel_;
  const int tag_;
  std::vector<Message> sends_;
  std::vector<Message> receives_;
  int failure_ = 0;  // MPI's status of a message that could not be started
  Watch watch_;
  bool suspicious_ = false;  // the last check has found a message of another call
};

}  // namespace cpudist::mpi
