// How a group's memory, slots and calls are divided, for each number of ranks and threads: the arithmetic alone.
#include "ranks.hpp"
#include "shared_memory/divided.hpp"
#include "shared_memory/shares.hpp"

using namespace cpudist;
using namespace cpudist::shared_memory;
using testing::require;

namespace {

constexpr int kRanks = 512;

void check_layout(Segment& segment, int ranks, int channels) {
  const std::string where = std::to_string(ranks) + " ranks, " + std::to_string(channels) + " channels: ";
  const Layout layout(ranks, channels);
  const auto count = static_cast<size_t>(ranks);
  require(layout.channels >= 1 && layout.channels <= channels, where + "the number of channels");
  require(layout.total_bytes <= kPageBytes + Layout::kMostBytes, where + "the segment is too small");
  require(layout.send_controls == kSlots * static_cast<size_t>(layout.channels) * sizeof(ControlBlock),
          where + "control blocks");
  require(layout.receive_controls - layout.send_controls >= count * sizeof(SendControl), where + "send controls");
  require(layout.eager_buffers - layout.receive_controls >= count * sizeof(ReceiveControl), where + "receive controls");
  require(layout.buffers - layout.eager_buffers >= count * layout.eager_bytes, where + "eager buffers");
  require(layout.slots - layout.buffers == kBuffers * kBufferParts * layout.part_bytes, where + "buffers");
  require(layout.eager_bytes >= kLineBytes && layout.part_bytes >= kLineBytes, where + "no room for messages");
  for (int number = 0; number < layout.channels; ++number) {
    Channel channel(segment, layout, static_cast<size_t>(number), ranks - 1, ranks);
    const Shares shares(channel);
    require(shares.bytes >= kLineBytes, where + "no room for a share");
    const auto* const end = segment.data() + layout.total_bytes;
    require(channel.slot(ranks - 1, kSlots - 1) + layout.slot_bytes <= end, where + "a slot outside the segment");
    require(shares.of(nullptr, 0, ranks - 1) + shares.bytes <= static_cast<std::byte*>(nullptr) + layout.slot_bytes,
            where + "a share outside its slot");
  }
}

void check_parts(size_t elements, size_t width, size_t channels) {
  const size_t parts = parts_of(elements * width, channels);
  require(parts >= 1 && parts <= channels, "the number of parts");
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
      for (int channels = 1; channels <= kMostChannels; ++channels) {
        if (ranks <= kMostRanks) check_layout(segment, ranks, channels);
      }
      std::string why;
      const Group group{0, ranks, std::vector<int>(static_cast<size_t>(ranks)), Milliseconds(1000), nullptr};
      if (ranks > kMostRanks) require(!shared_memory::create(group, why) && !why.empty(), "more ranks than have room");
    }
    for (size_t channels = 1; channels <= kMostChannels; ++channels) {
      for (const size_t elements : {0, 1, 511, 4096, 65'537, 1'000'003}) {
        for (const size_t width : {1, 2, 4, 8}) check_parts(elements, width, channels);
      }
    }
  });
}
