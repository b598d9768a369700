// What the headers of a newer glibc call, and glibc 2.28 lacks. The modules of a wheel contain it (old_symbols.py).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

// glibc 2.32. libstdc++'s headers leave out atomic instructions where it is true; false is always right.
char __libc_single_threaded = 0;

// glibc 2.33. Before, <sys/stat.h> had it inline, with this call.
#ifdef __x86_64__
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
extern int __fxstat(int version, int descriptor, struct stat* status);
int fstat(int descriptor, struct stat* status) { return __fxstat(kStatVersion, descriptor, status); }

// glibc 2.30, for std::condition_variable with a limit on the steady clock. Where it is missing, as libstdc++ does there:
// the same span on the wall clock. The caller looks at the steady clock again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* limit) {
  typedef int (*Wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  const Wait wait = (Wait)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  if (wait) return wait(condition, mutex, clock, limit);
  struct timespec steady, wall;
  clock_gettime(clock, &steady);
  clock_gettime(CLOCK_REALTIME, &wall);
  const long long second = 1000000000;
  long long left = (limit->tv_sec - steady.tv_sec) * second + limit->tv_nsec - steady.tv_nsec;
  const long long nanoseconds = wall.tv_nsec + (left > 0 ? left : 0);
  const struct timespec until = {wall.tv_sec + nanoseconds / second, nanoseconds % second};
  return pthread_cond_timedwait(condition, mutex, &until);
}
