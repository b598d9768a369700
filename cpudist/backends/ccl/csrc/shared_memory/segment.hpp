// Memory that the ranks of one machine share.
//
// It has no name: one rank creates it with memfd_create, the others open it as /proc/PID/fd/FD. The kernel frees it
// when the last process that maps it ends, also when that is killed. It does not need /dev/shm, which is small in
// containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cpudist::shared_memory {

class Segment {
 public:
  // Creates a segment of `bytes` zeros. Only processes of the same user can open it. Its memory is not allocated yet.
  // All functions of this class throw std::system_error or std::runtime_error, with a message of one line.
  static Segment create(size_t bytes);

  // Opens the segment whose address() another rank has published.
  static Segment open(const std::string& address);

  // The argument of open() in another process.
  std::string address() const;

  // Allocates the memory of this range, near the calling thread's processor. Without it, an access raises SIGBUS when
  // the machine's memory is full.
  void allocate(size_t offset, size_t bytes);

  // Takes a lock on one byte, which the kernel releases when this process ends, also when it is killed, and when the
  // segment is destroyed. A forked child does not inherit it.
  void lock(size_t offset);
  // Whether another process has a lock on this byte. Always true for this process's own.
  bool locked(size_t offset) const;

  // Enters the first pages into this process's page table now, so that the first calls are not slower. Errors are
  // ignored.
  void prefault(size_t bytes);

  std::byte* data() const { return data_; }

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

 private:
  Segment(int descriptor, size_t bytes);
  // The start of the segment. It identifies the segment, because process numbers repeat in containers and over time.
  uint64_t& secret() const { return *reinterpret_cast<uint64_t*>(data_); }

  int descriptor_;
  size_t bytes_;
  size_t locked_ = 0;  // the byte that this process has locked; 0 is never locked
  std::byte* data_;
};

}  // namespace cpudist::shared_memory
