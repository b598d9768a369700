// The threads of torch's own pool, lent to the transports.
#pragma once

#include <cstdint>
#include <vector>

namespace cpudist {

// Lends the calling thread's pool from now on, where each of its threads has one of this rank's `cores` for itself.
void lend_computing_threads(int cores);

// Bytes of each thread in calls that several threads carried.
std::vector<uint64_t> bytes_of_threads();

}  // namespace cpudist
