// Calls and bytes that each transport has carried for this process, over all its groups.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cpudist {

struct Traffic {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};  // of the larger buffer of each call

  void count(size_t bytes_of_call) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(bytes_of_call, std::memory_order_relaxed);
  }
};

inline Traffic mpi_traffic;
inline Traffic oneccl_traffic;
inline Traffic shared_memory_traffic;

// Bytes of the allreduces that crossed the network in another format than float32: as float32, and in that format.
inline std::atomic<uint64_t> converted_from{0};
inline std::atomic<uint64_t> converted_to{0};

}  // namespace cpudist
