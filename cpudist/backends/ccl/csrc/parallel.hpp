// The threads that compute, lent to the call that their rank waits for.
#pragma once

#include <cstddef>
#include <functional>

namespace cpudist::parallel {

// Of a call. A thread is worth waking for so many: it takes up to 50 us.
extern const size_t least_bytes;

// How many threads of this rank, each with a core of its own, are lent to the thread that waits.
int lent();

// How many of them may work for the calling thread now, itself included.
int available();

// Calls body(i) for each i below `threads`, each in a thread of its own, and returns when all have returned. Throws what
// one of them has thrown.
void run(int threads, const std::function<void(int)>& body);

// Adds to the bytes that this thread, one of several, has carried.
void count(int thread, size_t bytes);

}  // namespace cpudist::parallel
