// In place of segment.cpp where ranks are threads of one process: all of them use one mapping, because ThreadSanitizer
// goes by addresses and would not see that two mappings are the same memory.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "shared_memory/segment.hpp"

namespace cpudist::shared_memory {

Segment::Segment(int descriptor, size_t bytes) : descriptor_(descriptor), bytes_(bytes), data_(nullptr) {}

Segment Segment::create(size_t bytes) {
  Segment segment(-1, bytes);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) std::abort();
  segment.data_ = static_cast<std::byte*>(data);
  return segment;
}

std::string Segment::address() const { return std::to_string(reinterpret_cast<uintptr_t>(data_)); }

Segment Segment::open(const std::string& address) {
  Segment segment(-1, 0);
  segment.data_ = reinterpret_cast<std::byte*>(std::stoull(address));
  return segment;
}

void Segment::allocate(size_t, size_t) {}
void Segment::lock(size_t) {}
bool Segment::locked(size_t) const { return true; }
void Segment::prefault(size_t) {}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(-1), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

Segment::~Segment() {}  // other threads may still be at work on it; it goes with the process

}  // namespace cpudist::shared_memory
