#include "segment.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "../rendezvous.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cpudist::shared_memory {

namespace {

// Closes the descriptor and throws the error of the last system call.
[[noreturn]] void fail(const std::string& what, int descriptor = -1) {
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  throw std::system_error(error, std::generic_category(), what);
}

// Creates a file in memory that cannot be executed: some machines allow no other. Kernels before 6.3 reject the flag.
int make_file() {
  constexpr unsigned kNoExecution = 0x0008U;  // MFD_NOEXEC_SEAL
  int descriptor = memfd_create("cpudist", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution);
  if (descriptor < 0 && errno == EINVAL) descriptor = memfd_create("cpudist", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) fail("memfd_create");
  return descriptor;
}

struct flock one_byte(size_t offset) {
  struct flock range{};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offset);
  range.l_len = 1;
  return range;
}

}  // namespace

Segment::Segment(int descriptor, size_t bytes) : descriptor_(descriptor), bytes_(bytes), data_(nullptr) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) fail("mmap of shared memory", descriptor);
  data_ = static_cast<std::byte*>(data);
  madvise(data, bytes, MADV_DONTFORK);  // a child process is not a rank of the group
}

Segment Segment::create(size_t bytes) {
  const int descriptor = make_file();
  // The seals keep other processes from shrinking the file: an access beyond its end would raise SIGBUS.
  if (fchmod(descriptor, 0600) != 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("setting up shared memory", descriptor);
  }
  Segment segment(descriptor, bytes);
  segment.allocate(0, sizeof(uint64_t));
  segment.secret() = random_number();
  return segment;
}

std::string Segment::address() const {
  std::ostringstream text;
  text << getpid() << ' ' << descriptor_ << ' ' << bytes_ << ' ' << secret();
  return text.str();
}

Segment Segment::open(const std::string& address) {
  pid_t process = 0;
  int number = 0;
  size_t bytes = 0;
  uint64_t secret = 0;
  std::istringstream(address) >> process >> number >> bytes >> secret;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail("opening " + path);
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(bytes) ||
      (status.st_mode & 07777) != 0600) {
    close(descriptor);
    throw std::runtime_error(path + " is not the group's shared memory; start a machine's ranks in one PID namespace");
  }
  Segment segment(descriptor, bytes);
  if (segment.secret() != secret) {
    throw std::runtime_error(path + " belongs to another job; start a machine's ranks in one PID namespace");
  }
  return segment;
}

void Segment::allocate(size_t offset, size_t bytes) {
  while (fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) fail("allocating " + std::to_string(bytes) + " bytes of shared memory");
  }
}

void Segment::lock(size_t offset) {
  auto range = one_byte(offset);
  if (fcntl(descriptor_, F_SETLK, &range) != 0) fail("locking shared memory");
  locked_ = offset;
}

bool Segment::locked(size_t offset) const {
  if (offset == locked_) return true;
  auto range = one_byte(offset);
  return fcntl(descriptor_, F_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

void Segment::prefault([[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(data_, bytes, MADV_POPULATE_WRITE);
#endif
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      locked_(other.locked_),
      data_(std::exchange(other.data_, nullptr)) {}

Segment::~Segment() {
  if (descriptor_ >= 0) close(descriptor_);
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace cpudist::shared_memory
