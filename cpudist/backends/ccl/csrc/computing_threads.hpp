// Lends the threads of torch's own pool to the transports.
#pragma once

#include <cstdint>
#include <vector>

namespace cpudist {

// Lends the calling thread's pool from now on, unless the pool has more threads than this rank has `cores`.
void lend_computing_threads(int cores);

// Bytes that each thread has carried in calls divided among several threads.
std::vector<uint64_t> bytes_of_threads();

}  // namespace cpudist
