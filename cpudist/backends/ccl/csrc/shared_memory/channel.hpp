// The layout of a group's shared memory, and how a rank announces to the others that something is ready there.
//
// A group's collectives are one sequence of steps, the same on every rank: step 1, 2, 3, ... over all calls. In each
// step a rank enters the step, may write to its own slot, publishes the step, and then may read the slots of others. A
// rank has kSlots slots, used in turn: step s uses slot s % kSlots.
//
//   publish   stores s in the slot's control block with release, after all writes of step s to the slot and the block.
//   published loads s with acquire, so a rank that reads s also reads what was written in step s, on any processor.
//
// Counters only grow and have one writer each, so a rank that is ahead or behind is always recognised as such.
//
// A group whose ranks have several computing threads has several channels, each with its own control blocks and slots.
// Channels do not wait for each other: a large call is cut into parts, and each part is a call of its own on a channel.
//
// Why a slot is never overwritten while a rank still reads it: rank r publishes step s only when it has finished
// reading everything of step s - kLag and before (each algorithm keeps to this; most have finished reading step s - 1).
// A rank enters step s, and may then write to slot s % kSlots, only when all ranks have published step
// s - kSlots + kLag. Then all have finished reading step s - kSlots, which is what the slot held.
//
// Why no rank waits for ever: let s be the lowest step that some rank has yet to publish. All ranks have published
// s - 1. So the rank that has yet to publish s may enter it, and what it still waits to read is of s - 1 or before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../coroutine.hpp"
#include "segment.hpp"
#include "../signature.hpp"

namespace cpudist::shared_memory {

constexpr size_t kLineBytes = 64;  // of a cache line, the unit in which processors exchange memory
constexpr size_t kPageBytes = 4096;
constexpr size_t kPayload = kLineBytes - 2 * sizeof(uint64_t);  // of a control block
constexpr uint64_t kSlots = 8;
constexpr uint64_t kLag = 3;

// Control block of a slot; only the slot's rank writes to it. A small message is stored in the block that announces it.
struct alignas(kLineBytes) ControlBlock {
  std::atomic<uint64_t> step;  // grows only
  uint64_t signature;          // of the call that the step belongs to
  std::byte payload[kPayload];
};
static_assert(sizeof(ControlBlock) == kLineBytes && std::atomic<uint64_t>::is_always_lock_free);

// Messages from one rank to another (messages.cpp): the sender's block, in the sender's region ...
struct alignas(kLineBytes) SendControl {
  std::atomic<uint64_t> pieces;  // sent on this pair so far, over all messages
  uint64_t buffer;               // which of the sender's buffers holds them
  std::byte payload[kPayload];   // a short message itself
};

// ... and the receiver's, in the receiver's region.
struct alignas(kLineBytes) ReceiveControl {
  std::atomic<uint64_t> expected;  // messages that the receiver has begun to wait for
  std::atomic<uint64_t> pieces;    // taken so far
};

constexpr size_t kBuffers = 2;      // per rank, for rendezvous messages; each such message in flight holds one
constexpr size_t kBufferParts = 2;  // one is filled while the other is emptied

// Most ranks of one group. With more ranks, a slot would be too small to hold a cache line for each other rank, even
// with one channel.
constexpr int kMostRanks = 256;

// Sizes and offsets, the same on all ranks of a group.
//
// A page for the segment itself, then one region per rank. Only that rank writes to its region, and it allocates the
// pages, so that they are near its processor. A region holds each channel's control blocks, those of messages, a buffer
// for eager messages to each rank, buffers for rendezvous messages, and each channel's slots.
struct Layout {
  static constexpr size_t kMostBytes = size_t{60} << 20;  // of all regions

  // Uses fewer channels than asked for if a slot would otherwise not hold a cache line for each rank.
  Layout(int ranks, int most_channels);

  int channels;
  size_t send_controls;  // this one to `slots`: offsets from the start of the region
  size_t receive_controls;
  size_t eager_buffers;
  size_t buffers;
  size_t slots;
  size_t eager_bytes;
  size_t part_bytes;  // of a buffer
  size_t slot_bytes;
  size_t region_bytes;
  size_t total_bytes;

  // Where a rank's region begins in the segment.
  size_t region(int rank) const { return kPageBytes + static_cast<size_t>(rank) * region_bytes; }

 private:
  void divide(size_t ranks);
};

// A channel of a group's shared memory as one of its ranks sees it. Messages between two ranks use the first channel.
class Channel {
 public:
  Channel(Segment& segment, const Layout& layout, size_t number, int rank, int ranks);

  // Which collective may proceed: steps belong to one collective after the other, in the order of the calls.
  Turns turns;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  size_t slot_bytes() const { return layout_.slot_bytes; }
  size_t eager_bytes() const { return layout_.eager_bytes; }
  size_t part_bytes() const { return layout_.part_bytes; }

  // Sets the call that the following steps belong to. `counts`: the count in each rank's signature if ranks have
  // different counts; otherwise null.
  void begin(Signature signature, const size_t* counts) {
    signature_ = signature;
    counts_ = counts;
  }

  // Waits until the next step may be entered.
  class Enter final : public Condition {
   public:
    explicit Enter(Channel& channel) : channel_(channel) {}
    bool holds() override;
    int awaited_rank() override { return lacking_; }

   private:
    Channel& channel_;
    int lacking_ = -1;
  };

  // Waits until these ranks have published the step, and checks that they make the same call.
  // Throws TransportError where they do not.
  class Published final : public Condition {
   public:
    Published(Channel& channel, uint64_t step, int first, int end)
        : channel_(channel), step_(step), next_(first), end_(end) {}
    bool holds() override;
    int awaited_rank() override { return next_; }

   private:
    Channel& channel_;
    uint64_t step_;
    int next_;
    int end_;
  };

  Enter entered() { return Enter(*this); }
  Published published_by_all(uint64_t step) { return Published(*this, step, 0, ranks_); }
  Published published_by(int first, int end, uint64_t step) { return Published(*this, step, first, end); }

  // The step that was entered and is not yet published.
  uint64_t step() const { return step_; }

  // Publishes the step that has been entered and returns its number.
  uint64_t publish();

  // The place of `rank`'s data in this step: the control block if they fit, otherwise the slot.
  std::byte* place(int rank, uint64_t step, size_t bytes) {
    return bytes <= kPayload ? control_block(rank, step).payload : slot(rank, step);
  }
  std::byte* slot(int rank, uint64_t step) {
    return region(rank) + layout_.slots + (number_ * kSlots + step % kSlots) * layout_.slot_bytes;
  }

  SendControl& send_control(int from, int to) {
    return reinterpret_cast<SendControl*>(region(from) + layout_.send_controls)[to];
  }
  ReceiveControl& receive_control(int from, int to) {
    return reinterpret_cast<ReceiveControl*>(region(to) + layout_.receive_controls)[from];
  }
  std::byte* eager_buffer(int from, int to) {
    return region(from) + layout_.eager_buffers + static_cast<size_t>(to) * layout_.eager_bytes;
  }
  std::byte* buffer(int rank, uint64_t buffer, uint64_t part) {
    return region(rank) + layout_.buffers + (buffer * kBufferParts + part % kBufferParts) * layout_.part_bytes;
  }

  // Whether the process of a rank still has the group's memory: false once it has ended or destroyed the group.
  bool has(int rank) const { return segment_.locked(layout_.region(rank)); }

  // Makes every rank's calls fail with this reason, or with the reason of a rank that has failed earlier.
  void fail(const std::string& reason);
  // Throws TransportError if a rank has called fail().
  void check_failed() const;

 private:
  // In the segment's first page, after what Segment keeps there.
  struct Failure {
    static constexpr size_t kOffset = 256;

    std::atomic<uint32_t> state;  // 0: none, 1: being written, 2: written
    char reason[1024];
  };

  Failure& failure() const { return *reinterpret_cast<Failure*>(segment_.data() + Failure::kOffset); }
  Signature expected(int rank) const { return counts_ ? signature_.with_count(counts_[rank]) : signature_; }
  // Throws TransportError where a rank has published another call than this rank expects.
  void find_mismatch(uint64_t step);
  std::byte* region(int rank) { return regions_ + static_cast<size_t>(rank) * layout_.region_bytes; }
  ControlBlock& control_block(int rank, uint64_t step) {
    return reinterpret_cast<ControlBlock*>(region(rank))[number_ * kSlots + step % kSlots];
  }
  bool has_published(int rank, uint64_t step) {
    return control_block(rank, step).step.load(std::memory_order_acquire) >= step;
  }

  Segment& segment_;
  Layout layout_;
  size_t number_;
  std::byte* regions_;
  int rank_;
  int ranks_;
  uint64_t step_ = 1;
  uint64_t all_published_ = 0;  // a step that all ranks have published, as far as this rank has seen
  Signature signature_{Operation::kBarrier};
  const size_t* counts_ = nullptr;
};

}  // namespace cpudist::shared_memory
