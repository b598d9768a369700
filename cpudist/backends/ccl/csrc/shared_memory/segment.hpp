// Memory that the ranks of one machine share.
//
// It has no name: one rank creates it with memfd_create, the others open it as /proc/PID/fd/FD. The kernel frees it
// when the last process that maps it ends, also if that process is killed. It does not need /dev/shm, which is small in
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

  // Allocates the memory of this range, near the calling thread's processor. An access to memory that is not allocated
  // raises SIGBUS when the machine's memory is full.
  void allocate(size_t offset, size_t bytes);

  // Locks one byte. The kernel releases the lock when the segment is destroyed or this process ends, also when the
  // process is killed. A forked child does not inherit the lock.
  void lock(size_t offset);
  // Whether this process or another one has locked this byte. Also true if the kernel cannot be asked.
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
  // A random number at the segment's start, which identifies the segment: PIDs repeat in containers and over time.
  uint64_t& secret() const { return *reinterpret_cast<uint64_t*>(data_); }

  int descriptor_;
  size_t bytes_;
  size_t locked_ = 0;  // offset of the byte that this process has locked; 0 for none
  std::byte* data_;
};

}  // namespace cpudist::shared_memory
