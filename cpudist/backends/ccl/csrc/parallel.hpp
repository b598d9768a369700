// Lends a rank's computing threads to the collective call that the rank waits for.
#pragma once

#include <cstddef>
#include <functional>

namespace cpudist::parallel {

// Fewest bytes of a call that several threads carry. 8 threads take 30 us to join (Xeon with AMX); in this time one
// thread carries 200 KB of an allreduce. With fewer threads both the cost and the gain are smaller.
extern const size_t least_bytes;

// Returns the number of this rank's computing threads; 1 if the rank has fewer cores than threads.
int lent();

// Returns how many of them may work for the calling thread now, including the calling thread.
int available();

// Calls body(i) for each i below `threads`, each in a thread of its own, body(0) in the calling thread. Returns when
// all have returned. Rethrows an exception that one of them has thrown.
void run(int threads, const std::function<void(int)>& body);

// Adds to the bytes that this thread has carried in calls divided among several threads.
void count(int thread, size_t bytes);

}  // namespace cpudist::parallel
