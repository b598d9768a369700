#include "board.hpp"

#include <algorithm>

namespace cpudist::shared_memory {

namespace {

// Pieces as large as a slot were fastest; more ranks have smaller ones, so that a group stays below kMostBytes.
constexpr size_t kLargestSlot = size_t{256} << 10;
constexpr size_t kMostBytes = size_t{60} << 20;

size_t in_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

Layout::Layout(int ranks) {
  const auto count = static_cast<size_t>(ranks);
  letters = kSlots * sizeof(Line);
  receipts = letters + count * sizeof(Letter);
  buffers = in_pages(receipts + count * sizeof(Receipt));
  constexpr size_t kPlaces = kSlots + kBuffers * kBufferParts / 2;  // a part is half a slot
  slot_bytes = std::min(kLargestSlot, (kMostBytes / count - buffers) / kPlaces / kPageBytes * kPageBytes);
  part_bytes = slot_bytes / 2;
  slots = buffers + kBuffers * kBufferParts * part_bytes;
  region_bytes = slots + kSlots * slot_bytes;
  total_bytes = kPageBytes + count * region_bytes;
}

Board::Board(Segment segment, const Layout& layout, int rank, int ranks)
    : segment_(std::move(segment)),
      layout_(layout),
      regions_(segment_.data() + kPageBytes),
      rank_(rank),
      ranks_(ranks) {}

bool Board::Enter::holds() {
  if (board_.step_ + kLag <= kSlots) return true;
  const uint64_t needed = board_.step_ + kLag - kSlots;
  if (board_.all_published_ >= needed) return true;
  for (int rank = 0; rank < board_.ranks_; ++rank) {
    if (!board_.has_published(rank, needed)) return false;
  }
  board_.all_published_ = needed;
  return true;
}

bool Board::Published::holds() {
  for (; next_ < end_; ++next_) {
    if (!board_.has_published(next_, step_)) return false;
    const Call theirs(board_.line(next_, step_).call);
    if (theirs.bits() != board_.call_.bits()) {
      throw TransportError("ranks disagree about what to do: rank " + std::to_string(next_) + " calls " +
                           theirs.describe() + ", rank " + std::to_string(board_.rank_) + " calls " +
                           board_.call_.describe());
    }
  }
  return true;
}

uint64_t Board::publish() {
  Line& own = line(rank_, step_);
  own.call = call_.bits();
  own.step.store(step_, std::memory_order_release);
  return step_++;
}

}  // namespace cpudist::shared_memory
