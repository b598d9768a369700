// The seam between c10d and what carries the bytes.
//
// Above it (process group, schedules, mailbox, engine) nobody knows what carries a message. Below it (oneccl/,
// shared_memory/, hierarchy) nobody knows torch: pointers, counts and the enumerations here are all there is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace cpudist {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Element types, integers first. Types that are only moved (bool, complex, 8-bit floats) travel as integers of the same
// width.
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
};

constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: return 1;
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBFloat16: return 2;
    case DataType::kInt32:
    case DataType::kFloat32: return 4;
    case DataType::kInt64:
    case DataType::kFloat64: return 8;
  }
  return 0;
}

constexpr bool is_integer(DataType type) { return type < DataType::kFloat16; }

// kAverage is the sum divided by the number of ranks: integers are divided towards zero, and a float16 average of
// representable values does not overflow on the way.
enum class Reduction : uint8_t { kSum, kProduct, kMin, kMax, kAverage };

// The transport failed, here or at a peer. It cannot be used again: ranks may disagree about what has been carried.
struct TransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Progress : uint8_t {
  kWaiting,   // nothing has moved since the last time: the caller may back off
  kMoved,     // something has moved: ask again soon
  kComplete,  // the results are in place and the buffers are the caller's again
};

// A call under way.
//
// It is destroyed after it is complete, or never: when the caller gives up waiting, the transport and peers may still
// use its buffers, so requests, buffers and transport are then all kept until the process ends.
class Request {
 public:
  virtual ~Request() = default;

  // Moves on as far as it goes without waiting, for microseconds rather than milliseconds at a time; it must not sleep.
  // Not called again once it has returned kComplete. Throws TransportError.
  virtual Progress test() = 0;
};

using RequestPtr = std::unique_ptr<Request>;

// What carries the messages of one group of ranks.
//
// Threads: one at a time calls into all transports of a process and their requests (the engine holds a lock).
// Order: all ranks of the group make the same collective calls in the same order. Any number may be under way at once;
// they are tested oldest first, but may complete in another order. A transport matches the ranks' calls by their order
// and may hold a later one back until an earlier one is done.
// Arguments have been checked: ranks agree on types, roots and counts, a count may be 0, a group may have one rank.
// Buffers stay valid until the request is complete. Output and input are disjoint or exactly the same memory where a
// call says "in place". No alignment beyond the element's own may be assumed, nor the same alignment on all ranks.
// A call throws std::invalid_argument, before anything has been sent, for what the transport cannot do.
class Transport {
 public:
  virtual ~Transport() = default;

  // As the run record names it: "oneccl", "shared_memory".
  virtual const char* name() const = 0;

  virtual RequestPtr barrier() = 0;

  // The root's data goes to every rank.
  virtual RequestPtr broadcast(void* data, size_t count, DataType type, int root) = 0;

  // In place: input == output.
  virtual RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) = 0;

  // `output` is used on the root alone and may be null elsewhere. In place: input == output.
  virtual RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                            int root) = 0;

  // outputs[r] receives the counts[r] elements of rank r; counts are the same on all ranks.
  // In place: input == outputs[rank].
  virtual RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                               DataType type) = 0;

  // inputs[r], of counts[r] elements, is what this rank adds to rank r's output; counts are the same on all ranks.
  // In place: output == inputs[rank].
  virtual RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts,
                                    DataType type, Reduction reduction) = 0;

  // inputs[r] goes to rank r and outputs[r] comes from it; counts[r] there are this rank's own and differ from rank to
  // rank, but what one sends is what the other expects. Gather and scatter too, with counts of 0.
  virtual RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts,
                              std::vector<void*> outputs, std::vector<size_t> output_counts, DataType type) = 0;

  // Bytes to or from one peer. The caller has at most one send under way to a peer and one receive from it, and both
  // sides agree on the size. No order with collectives. The mailbox makes tags and any-source of these two.
  virtual RequestPtr send(const void* data, size_t bytes, int destination) = 0;
  virtual RequestPtr recv(void* data, size_t bytes, int source) = 0;
};

using TransportPtr = std::unique_ptr<Transport>;

// Where the ranks of a group meet before they have a transport: keys and values that all of them see.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Empty while nobody has set the key; does not wait.
  virtual std::optional<std::string> get(const std::string& key) = 0;
};

// A group whose transport is being made. All ranks have the same of it but `rank`.
struct Group {
  int rank;
  int size;
  std::vector<int> nodes;  // nodes[r]: the machine of rank r, by number; ranks with the same number can share memory
  Milliseconds timeout;    // for the ranks to meet
  KeyValueStore* store;    // this group's own; used while the transport is made, never afterwards
  // numa_nodes[r]: the NUMA node of its machine that rank r is in. Empty where one is in several, or it is not known.
  std::vector<int> numa_nodes = {};

  bool on_one_node() const {
    for (const int node : nodes) {
      if (node != nodes.front()) return false;
    }
    return true;
  }
};

// Publishes this rank's value and returns every rank's, by rank. A key serves once per store.
// Throws TransportError, which names the missing ranks, after the group's timeout.
std::vector<std::string> exchange(const Group& group, const std::string& key, const std::string& value);

}  // namespace cpudist
