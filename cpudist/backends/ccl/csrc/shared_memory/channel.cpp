#include "channel.hpp"

#include <sched.h>

#include <algorithm>

namespace cpudist::shared_memory {

namespace {

// Pieces as large as the largest slot were fastest. In groups of many ranks slots are smaller, so that a group stays
// below Layout::kMostBytes.
constexpr size_t kLargestSlot = size_t{256} << 10;
constexpr size_t kLargestEager = size_t{64} << 10;
constexpr size_t kPartOfEager = 8;  // eager buffers take at most 1 / 8 of a rank's region

size_t in_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

Layout::Layout(int ranks, int most_channels) : channels(most_channels) {
  const auto count = static_cast<size_t>(ranks);
  for (divide(count); slot_bytes < count * kLineBytes && channels > 1; divide(count)) --channels;
}

void Layout::divide(size_t ranks) {
  const size_t room = kMostBytes / ranks;  // of a region
  const size_t all_slots = kSlots * static_cast<size_t>(channels);
  send_controls = all_slots * sizeof(ControlBlock);
  receive_controls = send_controls + ranks * sizeof(SendControl);
  eager_buffers = in_pages(receive_controls + ranks * sizeof(ReceiveControl));
  eager_bytes = std::min(kLargestEager, room / kPartOfEager / ranks / kLineBytes * kLineBytes);
  buffers = in_pages(eager_buffers + ranks * eager_bytes);
  const size_t places = all_slots + kBuffers * kBufferParts / 2;  // a part is half a slot
  const size_t left = room > buffers ? room - buffers : 0;
  slot_bytes = std::min(kLargestSlot, left / places / kPageBytes * kPageBytes);
  part_bytes = slot_bytes / 2;
  slots = buffers + kBuffers * kBufferParts * part_bytes;
  region_bytes = slots + all_slots * slot_bytes;
  total_bytes = kPageBytes + ranks * region_bytes;
}

Channel::Channel(Segment& segment, const Layout& layout, size_t number, int rank, int ranks)
    : segment_(segment),
      layout_(layout),
      number_(number),
      regions_(segment_.data() + kPageBytes),
      rank_(rank),
      ranks_(ranks) {}

bool Channel::Enter::holds() {
  if (channel_.step_ + kLag <= kSlots) return true;
  const uint64_t needed = channel_.step_ + kLag - kSlots;
  if (channel_.all_published_ >= needed) return true;
  for (int rank = 0; rank < channel_.ranks_; ++rank) {
    lacking_ = rank;
    if (!channel_.has_published(rank, needed)) return false;
  }
  channel_.all_published_ = needed;
  return true;
}

bool Channel::Published::holds() {
  for (; next_ < end_; ++next_) {
    if (!channel_.has_published(next_, step_)) return false;
    if (channel_.control_block(next_, step_).signature != channel_.expected(next_).bits()) {
      channel_.find_mismatch(step_);
      return false;
    }
  }
  return true;
}

// A rank with the expected count but another hash disagrees with this rank about the count of a third rank. Whichever
// of the two is wrong about that count reports this to all, once the third rank has published the step.
void Channel::find_mismatch(uint64_t step) {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!has_published(rank, step)) continue;
    const Signature theirs(control_block(rank, step).signature);
    const Signature expected = this->expected(rank);
    const bool same =
        counts_ ? theirs.without_hash().bits() == expected.without_hash().bits() : theirs.bits() == expected.bits();
    if (same) continue;
    throw TransportError("ranks make different calls: rank " + std::to_string(rank) + " " + theirs.describe("calls") +
                         ", rank " + std::to_string(rank_) + " " + expected.describe(counts_ ? "expects" : "calls") +
                         "; let all ranks make the same calls in one order");
  }
}

void Channel::fail(const std::string& reason) {
  uint32_t none = 0;
  if (failure().state.compare_exchange_strong(none, 1)) {
    failure().reason[reason.copy(failure().reason, sizeof failure().reason - 1)] = '\0';
    failure().state.store(2, std::memory_order_release);
    return;
  }
  // Another rank is writing its reason. That takes microseconds, unless the rank is killed meanwhile.
  const auto limit = Clock::now() + std::chrono::seconds(1);
  while (failure().state.load(std::memory_order_acquire) != 2 && Clock::now() < limit) sched_yield();
}

void Channel::check_failed() const {
  if (failure().state.load(std::memory_order_acquire) == 2) throw TransportError(failure().reason);
}

uint64_t Channel::publish() {
  ControlBlock& own = control_block(rank_, step_);
  own.signature = signature_.bits();
  own.step.store(step_, std::memory_order_release);
  return step_++;
}

}  // namespace cpudist::shared_memory
