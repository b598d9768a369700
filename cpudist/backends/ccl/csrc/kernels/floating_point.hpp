// One floating-point state for all arithmetic of collectives.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cpudist::kernels {

// Sets the processor's default floating-point state for the lifetime of the object: rounding to nearest, subnormals
// kept. With another state, for example after torch.set_flush_denormal, a rank would compute different bits.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : saved_(get()) {
    if ((saved_ & ~kFlags) != kDefault) set(kDefault);
  }
  ~DefaultFloatingPoint() {
    if ((saved_ & ~kFlags) != kDefault) set(saved_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kDefault = 0x1f80;
  static constexpr uint64_t kFlags = 0x3f;  // exceptions that have occurred
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t state) { _mm_setcsr(static_cast<uint32_t>(state)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static constexpr uint64_t kFlags = 0;
  static uint64_t get() {
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void set(uint64_t state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t kDefault = 0;
  static constexpr uint64_t kFlags = 0;
  static uint64_t get() { return kDefault; }
  static void set(uint64_t) {}
#endif

  const uint64_t saved_;
};

}  // namespace cpudist::kernels
