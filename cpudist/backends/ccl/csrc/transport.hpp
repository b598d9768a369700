// The interface between c10d and the transports, which carry the bytes.
//
// Code above it (process group, schedules, tag matching, engine) does not depend on any transport. Code below it (mpi/,
// oneccl/, shared_memory/, kernels/, hierarchy) does not depend on torch: it uses pointers, counts and enumerations.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cpudist {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Element types. All types of kTypes can be moved; those with an enumerator here can also be reduced.
enum class DataType : uint8_t {
  kInt8,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBool,
};

struct Type {
  const char* name;  // torch's name
  size_t bytes;
  size_t parts = 1;  // elements of this size per element of torch: oneCCL has no type of 16 bytes
};

// Indexed by DataType; types without an enumerator follow.
constexpr Type kTypes[] = {
    {"int8", 1},           {"uint8", 1},       {"int16", 2},         {"int32", 4},           {"int64", 8},
    {"float16", 2},        {"bfloat16", 2},    {"float32", 4},       {"float64", 8},         {"bool", 1},
    {"uint16", 2},         {"uint32", 4},      {"uint64", 8},        {"complex32", 4},       {"complex64", 8},
    {"complex128", 8, 2},  {"float8_e5m2", 1}, {"float8_e4m3fn", 1}, {"float8_e5m2fnuz", 1}, {"float8_e4m3fnuz", 1},
    {"float8_e8m0fnu", 1},
};

constexpr size_t size_of(DataType type) { return kTypes[static_cast<size_t>(type)].bytes; }

constexpr bool is_integer(DataType type) { return type < DataType::kFloat16 || type == DataType::kBool; }

// kAverage is the sum divided by the number of ranks; integers are rounded towards zero. Intermediate sums of a float16
// average do not overflow. Bitwise reductions are for integers and booleans only.
enum class Reduction : uint8_t { kSum, kProduct, kMin, kMax, kAverage, kBitAnd, kBitOr, kBitXor };

// Given as the root of a reduction: every rank receives the result.
constexpr int kAllRanks = -1;

constexpr bool is_bitwise(Reduction reduction) { return reduction >= Reduction::kBitAnd; }

// The format in which float32 sums and averages cross a network. The rounding errors depend only on the values, so all
// ranks get the same bits.
enum class Wire : uint8_t { kFloat32, kBFloat16, kInt8 };

// The transport failed, here or at a peer. It cannot be used again, because ranks may disagree about the completed
// calls.
struct TransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another rank makes a different call than this rank.
struct OtherCall : TransportError {
  OtherCall(int peer, const std::string& what) : TransportError(what), rank(peer) {}
  int rank;
};

// A rank sends another number of bytes than its peer expects.
inline TransportError alltoall_mismatch(size_t from, size_t sent, size_t to, size_t expected) {
  return TransportError("all_to_all: rank " + std::to_string(from) + " sends " + std::to_string(sent) +
                        " bytes to rank " + std::to_string(to) + ", which expects " + std::to_string(expected) +
                        "; make the split sizes of both agree");
}

inline size_t sum(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

// How much of [offset, offset + most) lies within a message of size `whole`.
inline size_t part(size_t whole, size_t offset, size_t most) {
  return whole > offset ? std::min(whole - offset, most) : 0;
}

inline std::vector<size_t> parts(std::vector<size_t> wholes, size_t offset, size_t most) {
  for (size_t& whole : wholes) whole = part(whole, offset, most);
  return wholes;
}

// Number of pieces of at most `most` in a message of size `whole`. An empty message has one piece, so that its ranks
// can notice that they make different calls.
inline size_t pieces_of(size_t whole, size_t most) { return std::max<size_t>((whole + most - 1) / most, 1); }

// A rank's part of elements that are divided among all ranks.
struct Share {
  size_t first;
  size_t count;
};

inline Share share_of(size_t count, size_t rank, size_t ranks) {
  const size_t first = count * rank / ranks;
  return {first, count * (rank + 1) / ranks - first};
}

// Hash of numbers with splitmix64's constants. Numbers that differ in the same way also get different hashes.
template <typename Numbers = std::initializer_list<uint64_t>>
uint64_t hash_of(const Numbers& numbers) {
  uint64_t hash = 0;
  for (const uint64_t number : numbers) {
    hash = (hash ^ number) + 0x9e3779b97f4a7c15;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

inline const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
inline std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

// Memory that a call needs besides its tensors.
using Scratch = std::unique_ptr<std::byte[]>;

inline Scratch allocate(size_t bytes) { return std::make_unique_for_overwrite<std::byte[]>(bytes); }

enum class Progress : uint8_t {
  kWaiting,   // nothing has moved since the last call: the caller may back off
  kMoved,     // something has moved: call again soon
  kComplete,  // the results are in place and the transport no longer uses the
              // buffers
};

// A call in flight.
//
// It is destroyed after it is complete, or never. When the caller gives up waiting, the transport and peers may still
// use its buffers, so requests, buffers and transport are then kept until the process ends.
class Request {
 public:
  virtual ~Request() = default;

  // Advances the call without waiting, for microseconds rather than milliseconds at a time; it must not sleep.
  // Not called again once it has returned kComplete. Throws TransportError.
  virtual Progress test() = 0;
};

using RequestPtr = std::unique_ptr<Request>;

// Advances each of these requests, oldest first, and frees the complete ones. Returns kComplete if all are complete.
inline Progress test_all(std::vector<RequestPtr>& requests) {
  bool moved = false;
  for (auto& request : requests) {
    const auto progress = request->test();
    moved = moved || progress != Progress::kWaiting;
    if (progress == Progress::kComplete) request.reset();
  }
  std::erase(requests, nullptr);
  if (requests.empty()) return Progress::kComplete;
  return moved ? Progress::kMoved : Progress::kWaiting;
}

// Carries the messages of one group of ranks.
//
// Threads: only one thread at a time calls the transports of a process and their requests (the engine holds a lock).
// Order: all ranks of the group make the same collective calls in the same order. Any number may be in flight at once;
// they are tested oldest first, but may complete in another order. A transport matches the ranks' calls by their order
// and may hold a later one back until an earlier one is done.
// Arguments have been checked on each rank. Ranks must agree on types, roots and counts. A count may be 0. A group may
// have one rank. Buffers stay valid until the request is complete. Output and input are disjoint, or exactly the same
// memory where a call says "in place". Buffers are aligned to the element only, and not in the same way on all ranks.
// A call that the transport cannot do throws std::invalid_argument before anything has been sent.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual RequestPtr barrier() = 0;

  // Sends the root's data to every rank.
  virtual RequestPtr broadcast(void* data, size_t count, DataType type, int root) = 0;

  // In place: input == output.
  virtual RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) = 0;

  // Averages float32 values in place. A transport that sends them in a format with rounding errors first adds
  // `residual`, the errors of earlier calls on this rank, and then stores the errors of this call there. Other
  // transports leave `residual` as it is.
  virtual RequestPtr allreduce_with_residual(float* data, float* /*residual*/, size_t count) {
    return allreduce(data, data, count, DataType::kFloat32, Reduction::kAverage);
  }

  // `output` is used on the root only and may be null elsewhere. In place: input == output.
  virtual RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                            int root) = 0;

  // outputs[r] receives the counts[r] elements of rank r; counts are the same on all ranks.
  // In place: input == outputs[rank].
  virtual RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                               DataType type) = 0;

  // The allgather of bytes with which the ranks leave the group; it is the group's last call.
  virtual RequestPtr leave(const void* input, std::vector<void*> outputs, std::vector<size_t> counts) {
    return allgather(input, std::move(outputs), std::move(counts), DataType::kUint8);
  }

  // inputs[r], of counts[r] elements, is this rank's contribution to rank r's output; counts are the same on all ranks.
  // In place: output == inputs[rank].
  virtual RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts,
                                    DataType type, Reduction reduction) = 0;

  // inputs[r] goes to rank r and outputs[r] comes from it. Counts are this rank's own: rank a's input_counts[b] is rank
  // b's output_counts[a]. Gather and scatter are alltoalls in which most counts are 0.
  virtual RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts,
                              std::vector<void*> outputs, std::vector<size_t> output_counts, DataType type) = 0;

  // Makes `call`, an allgather or reduce_scatter whose counts each rank has from its own caller. If the counts differ,
  // all ranks fail with a TransportError. The default, for transports that detect this anyway, only makes the call.
  virtual RequestPtr with_agreed_counts(const char* /*name*/, const std::vector<size_t>& /*counts*/,
                                        const std::function<RequestPtr()>& call) {
    return call();
  }

  // Sends or receives bytes. The caller has at most one send to a peer and one receive from it in flight; both sides
  // agree on the size. Messages are not ordered with collectives. TagMatcher adds tags and receives from any source.
  virtual RequestPtr send(const void* data, size_t bytes, int destination) = 0;
  virtual RequestPtr recv(void* data, size_t bytes, int source) = 0;
};

using TransportPtr = std::unique_ptr<Transport>;

}  // namespace cpudist
