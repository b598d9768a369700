// Memory that the ranks of one machine share.
//
// It has no name: one rank makes it with memfd_create, the others open it as /proc/PID/fd/FD, and the kernel frees it
// with the last process that maps it, however that ends. /dev/shm is not used, so a small or full one does not matter.
#pragma once

#include <cstddef>
#include <string>

namespace cpudist::shared_memory {

class Segment {
 public:
  // Makes a segment of `bytes` zeros. Only processes of the same user can open it. Nothing is allocated yet.
  // This and all below throw std::system_error, or std::runtime_error, with what went wrong in one line.
  static Segment create(size_t bytes);

  // Opens the segment that another rank's address() describes.
  static Segment open(const std::string& address);

  // What open() needs in another process, for as long as this one keeps the descriptor.
  std::string address() const;

  // Takes memory for this range, near the calling thread's processor. What has been allocated cannot fail later:
  // a range that has not would end the process with SIGBUS when the machine's memory is full.
  void allocate(size_t offset, size_t bytes);

  // Once every rank has opened it: from here on nobody else can.
  void close_descriptor();

  // Enters every page into this process's page table now, rather than in the first calls. Only a hint.
  void prefault();

  std::byte* data() const { return data_; }

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

 private:
  Segment(int descriptor, size_t bytes);

  int descriptor_;
  size_t bytes_;
  std::byte* data_;
};

}  // namespace cpudist::shared_memory
