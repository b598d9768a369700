// The threads that compute, lent to the call that their rank waits for.
#pragma once

#include <cstddef>
#include <functional>

namespace cpudist::parallel {

// Of a call that is worth the pool: with 8 threads it takes 30 us to join (Xeon with AMX), in which one thread carries
// 200 KB of an allreduce. With fewer threads both the cost and the gain are smaller.
extern const size_t least_bytes;

// How many threads of this rank, each with a core of its own, are lent to the thread that waits.
int lent();

// How many of them may work for the calling thread now, itself included.
int available();

// Calls body(i) for each i below `threads`, each in a thread of its own, body(0) in the calling one, and returns when all
// have returned. Throws what one of them has thrown.
void run(int threads, const std::function<void(int)>& body);

// Adds to the bytes that this thread, one of several, has carried.
void count(int thread, size_t bytes);

}  // namespace cpudist::parallel
