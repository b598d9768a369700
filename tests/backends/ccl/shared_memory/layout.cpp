// How a group's memory, slots and calls are divided, for each number of ranks and threads: the arithmetic alone.
#include "ranks.hpp"
#include "shared_memory/divided.hpp"
#include "shared_memory/shares.hpp"

using namespace cpudist;
using namespace cpudist::shared_memory;
using testing::require;

namespace {

constexpr int kRanks = 512;

void check_layout(Segment& segment, int ranks, int lanes) {
  const std::string where = std::to_string(ranks) + " ranks, " + std::to_string(lanes) + " lanes: ";
  const Layout layout(ranks, lanes);
  const auto count = static_cast<size_t>(ranks);
  require(layout.lanes >= 1 && layout.lanes <= lanes, where + "the number of lanes");
  require(layout.total_bytes <= kPageBytes + Layout::kMostBytes, where + "the segment is too small");
  require(layout.letters == kSlots * static_cast<size_t>(layout.lanes) * sizeof(Line), where + "lines");
  require(layout.receipts - layout.letters >= count * sizeof(Letter), where + "letters");
  require(layout.parcels - layout.receipts >= count * sizeof(Receipt), where + "receipts");
  require(layout.buffers - layout.parcels >= count * layout.parcel_bytes, where + "parcels");
  require(layout.slots - layout.buffers == kBuffers * kBufferParts * layout.part_bytes, where + "buffers");
  require(layout.parcel_bytes >= kLineBytes && layout.part_bytes >= kLineBytes, where + "no room for messages");
  for (int lane = 0; lane < layout.lanes; ++lane) {
    Board board(segment, layout, static_cast<size_t>(lane), ranks - 1, ranks);
    const Shares shares(board);
    require(shares.bytes >= kLineBytes, where + "no room for a share");
    const auto* const end = segment.data() + layout.total_bytes;
    require(board.slot(ranks - 1, kSlots - 1) + layout.slot_bytes <= end, where + "a slot outside the segment");
    require(shares.of(nullptr, 0, ranks - 1) + shares.bytes <= static_cast<std::byte*>(nullptr) + layout.slot_bytes,
            where + "a share outside its slot");
  }
}

void check_parts(size_t elements, size_t width, size_t lanes) {
  const size_t parts = parts_of(elements * width, lanes);
  require(parts >= 1 && parts <= lanes, "the number of parts");
  size_t next = 0;
  for (size_t number = 0; number < parts; ++number) {
    const Part part{number, parts};
    require(part.begin(elements, width) == next, "parts leave a gap");
    next += part.count(elements, width);
  }
  require(next == elements, "parts do not cover the call");
}

}  // namespace

int main() {
  return testing::run_ranks(1, false, [](int) {
    auto segment = Segment::create(kPageBytes + Layout::kMostBytes);
    for (int ranks = 1; ranks <= kRanks; ++ranks) {
      for (int lanes = 1; lanes <= kMostLanes; ++lanes) {
        if (ranks <= kMostRanks) check_layout(segment, ranks, lanes);
      }
      std::string why;
      const Group group{0, ranks, std::vector<int>(static_cast<size_t>(ranks)), Milliseconds(1000), nullptr};
      if (ranks > kMostRanks) require(!shared_memory::create(group, why) && !why.empty(), "more ranks than have room");
    }
    for (size_t lanes = 1; lanes <= kMostLanes; ++lanes) {
      for (const size_t elements : {0, 1, 511, 4096, 65'537, 1'000'003}) {
        for (const size_t width : {1, 2, 4, 8}) check_parts(elements, width, lanes);
      }
    }
  });
}
