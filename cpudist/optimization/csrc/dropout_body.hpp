// The draw in vectors of WIDTH bytes. dropout.cpp includes this file once per instruction set, each time in another
// namespace, with WIDTH, TARGET (the functions' attribute) and MULTIPLY (of the lower halves of 64-bit words) defined. So
// it has no include guard.

typedef uint32_t Words __attribute__((vector_size(WIDTH)));
typedef uint64_t Pairs __attribute__((vector_size(WIDTH)));
constexpr size_t kLanes = WIDTH / sizeof(uint32_t);

// Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) of the counters from `counter` on, one
// per lane. Each 64-bit word of `even` and `odd` has a 32-bit word of the algorithm in its lower half, and anything above.
TARGET inline void philox(uint64_t seed, uint64_t counter, Words words[4]) {
  static constexpr uint64_t kEven[] = {0, 2, 4, 6, 8, 10, 12, 14};
  Pairs first;
  std::memcpy(&first, kEven, sizeof first);
  first += counter;
  Pairs even[4] = {first, first >> 32}, odd[4] = {first + 1, (first + 1) >> 32};
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    for (Pairs* c : {even, odd}) {
      const Pairs product0 = MULTIPLY(c[0], Pairs{} + 0xD2511F53), product1 = MULTIPLY(c[2], Pairs{} + 0xCD9E8D57);
      c[0] = (product1 >> 32) ^ c[1] ^ key0;
      c[1] = product1;
      c[2] = (product0 >> 32) ^ c[3] ^ key1;
      c[3] = product0;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  for (int k = 0; k < 4; ++k) words[k] = (Words)((even[k] & 0xffffffff) | (odd[k] << 32));
}

template <typename Operation>
TARGET void carry_out(Operation operation, Mask mask, size_t from, size_t to) {
  for (size_t at = from; at < to; at += kGroup) {
    uint32_t kept[kGroup];
    for (size_t lane = 0; lane < kCounters; lane += kLanes) {
      Words words[4];
      philox(mask.seed, at / kGroup * kCounters + lane, words);
      for (size_t k = 0; k < 4; ++k) {
        const auto less = (Words)(words[k] < mask.threshold);
        std::memcpy(kept + k * kCounters + lane, &less, sizeof less);
      }
    }
    if (to - at >= kGroup) {
      operation(at, kept, kGroup);  // a constant, for the compiler
    } else {
      operation(at, kept, to - at);
    }
  }
}
