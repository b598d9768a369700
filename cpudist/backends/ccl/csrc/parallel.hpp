// Copies and reductions of large calls on the threads that compute, which idle while their rank waits for the call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "kernels/floating_point.hpp"

namespace cpudist::parallel {

// Calls of fewer bytes are carried by one thread. Waking the others takes up to 50 us, and then 1 us for each step.
extern const size_t least_bytes;

// How many threads may work for the calling one now, itself included.
int available();

// Calls body(i) for each i below `threads`, each in a thread of its own, and returns when all have returned.
void run(int threads, const std::function<void(int)>& body);

// Counts what one of several threads has copied or reduced.
void count(size_t thread, size_t bytes);

struct Range {
  size_t begin;
  size_t count;
};

// Which part of each copy and reduction of a step a thread does. Slices are whole cache lines.
struct Slice {
  // Returns this thread's share of `elements`, of `width` bytes each.
  Range of(size_t elements, size_t width) const {
    if (threads == 1) return {0, elements};
    const size_t line = 64 / width;
    const size_t each = (elements + threads * line - 1) / (threads * line) * line;
    const size_t begin = std::min(thread * each, elements);
    const size_t length = std::min(elements - begin, each);
    count(thread, length * width);
    return {begin, length};
  }

  size_t thread = 0;
  size_t threads = 1;
};

template <typename Body>
[[gnu::cold, gnu::noinline]] void divide_among(int threads, const Body& body) {
  run(threads, [&](int thread) {
    const kernels::DefaultFloatingPoint floating_point;  // a thread may have another state than the one that waits
    body(Slice{static_cast<size_t>(thread), static_cast<size_t>(threads)});
  });
}

// Calls body(slice) in as many threads as may work for this one, each with its slice. `bytes`: of the whole call.
template <typename Body>
void divide(size_t bytes, const Body& body) {
  const int threads = bytes < least_bytes ? 1 : available();
  if (threads > 1) return divide_among(threads, body);
  body(Slice());
}

// Copies a slice of `bytes` bytes. The two may be the same memory.
inline void copy(void* to, const void* from, size_t bytes, Slice slice) {
  const auto own = slice.of(bytes, 1);
  if (own.count == 0 || to == from) return;
  std::memcpy(static_cast<std::byte*>(to) + own.begin, static_cast<const std::byte*>(from) + own.begin, own.count);
}

inline void copy(void* to, const void* from, size_t bytes) {
  divide(bytes, [=](Slice slice) { copy(to, from, bytes, slice); });
}

}  // namespace cpudist::parallel
