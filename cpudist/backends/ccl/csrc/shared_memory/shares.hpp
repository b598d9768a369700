// How ranks divide messages, and the slots that carry them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "channel.hpp"

namespace cpudist::shared_memory {

// A memcpy that allows null pointers where nothing is copied, and a copy to the same place.
inline void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// One of the parts into which elements are divided. Parts begin at multiples of a cache line.
struct Part {
  size_t begin(size_t elements, size_t width) const {
    if (parts == 1) return number * elements;
    const size_t line = kLineBytes / width;
    return std::min(number * pieces_of(elements, parts * line) * line, elements);
  }
  size_t count(size_t elements, size_t width) const {
    return Part{number + 1, parts}.begin(elements, width) - begin(elements, width);
  }

  size_t number;
  size_t parts;
};

// A slot that holds a part for each other rank.
//
//   | for rank 0 | for rank 1 | ... |   the slot's owner has no part
struct Shares {
  Shares(const Channel& channel) : ranks(channel.ranks()) {
    const auto others = static_cast<size_t>(std::max(ranks - 1, 1));
    bytes = channel.slot_bytes() / others / kLineBytes * kLineBytes;
  }

  std::byte* of(std::byte* slot, int owner, int receiver) const {
    return slot + static_cast<size_t>(receiver - (receiver > owner ? 1 : 0)) * bytes;
  }

  int ranks;
  size_t bytes;
};

}  // namespace cpudist::shared_memory
