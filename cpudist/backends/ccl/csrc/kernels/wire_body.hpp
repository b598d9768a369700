// The conversions of wire.hpp in vectors of WIDTH bytes, included by reduce.cpp like reduce_body.hpp. reduce.cpp turns
// off contraction to fused multiply-adds, which would round differently on processors that have them.

constexpr size_t kLanes = WIDTH / 4;
typedef int32_t Integers __attribute__((vector_size(WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(WIDTH / 2)));
typedef int8_t Bytes __attribute__((vector_size(WIDTH / 4)));

// Stores the decoded values, or adds them to the stored ones.
template <bool kAdds>
TARGET inline void put(float* to, Floats value) {
  if constexpr (kAdds) value = load_vector<Floats>(to) + value;
  store_vector(to, value);
}

// A wire format. A block has kValues values, in kHead bytes for the block and kEach bytes for each value.
struct BFloat16Wire {
  static constexpr size_t kValues = kLanes;
  static constexpr size_t kHead = 0;
  static constexpr size_t kEach = 2;

  TARGET static inline Floats values_of(Halves halves) {
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
  }

  TARGET static inline void encode(const float* from, char* to, float* lost) {
    const auto value = load_vector<Floats>(from);
    const auto halves = __builtin_convertvector(BFloat16::rounded(value) >> 16, Halves);
    store_vector(to, halves);
    if (lost == nullptr) return;
    const Floats rest = value - values_of(halves);
    store_vector(lost, rest - rest == 0 ? rest : Floats{});
  }

  template <bool kAdds>
  TARGET static inline void decode(const char* from, float* to) {
    put<kAdds>(to, values_of(load_vector<Halves>(from)));
  }
};

struct Int8Wire {
  static constexpr size_t kValues = kWireBlock;
  static constexpr size_t kHead = sizeof(float);
  static constexpr size_t kEach = 1;

  // Largest magnitude of a block, infinity or NaN if the block has one: without a sign, bits sort like the numbers.
  TARGET static inline float largest(const float* from) {
    Words most{};
    for (size_t i = 0; i < kValues; i += kLanes) {
      const Words magnitude = load_vector<Words>(from + i) & 0x7fffffff;
      most = most > magnitude ? most : magnitude;
    }
    uint32_t bits = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) bits = bits > most[lane] ? bits : most[lane];
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }

  TARGET static inline void encode(const float* from, char* to, float* lost) {
    const float most = largest(from);
    const bool finite = most - most == 0;
    const bool tiny = most < 0x1p-100f;  // its inverse would not be finite
    const float scale = tiny ? 0.0f : finite ? most / 127 : most - most;
    const float inverse = tiny || !finite ? 0.0f : 127 / most;
    std::memcpy(to, &scale, sizeof scale);
    for (size_t i = 0; i < kValues; i += kLanes) {
      const auto value = load_vector<Floats>(from + i);
      // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the lowest bits.
      const Floats shifted = value * inverse + 0x1.8p23f;
      const auto number = (Integers)shifted - 0x4b400000;
      store_vector(to + kHead + i, __builtin_convertvector(number, Bytes));
      if (lost == nullptr) continue;
      store_vector(lost + i, finite ? value - __builtin_convertvector(number, Floats) * scale : Floats{});
    }
  }

  template <bool kAdds>
  TARGET static inline void decode(const char* from, float* to) {
    float scale;
    std::memcpy(&scale, from, sizeof scale);
    for (size_t i = 0; i < kValues; i += kLanes) {
      const auto bytes = load_vector<Bytes>(from + kHead + i);
      put<kAdds>(to + i, __builtin_convertvector(bytes, Floats) * scale);
    }
  }
};

template <typename Format>
constexpr size_t kBlockBytes = Format::kHead + Format::kEach * Format::kValues;

// The last block may be shorter: its values, padded, are converted in a buffer.
template <typename Format>
TARGET void encode(const float* from, void* to, float* lost, size_t count) {
  auto* next = static_cast<char*>(to);
  size_t i = 0;
  for (; i + Format::kValues <= count; i += Format::kValues, next += kBlockBytes<Format>) {
    Format::encode(from + i, next, lost ? lost + i : nullptr);
  }
  if (i == count) return;
  float values[Format::kValues] = {};
  float rest[Format::kValues];
  char encoded[kBlockBytes<Format>];
  std::memcpy(values, from + i, (count - i) * sizeof(float));
  Format::encode(values, encoded, rest);
  std::memcpy(next, encoded, Format::kHead + Format::kEach * (count - i));
  if (lost != nullptr) std::memcpy(lost + i, rest, (count - i) * sizeof(float));
}

template <typename Format, bool kAdds>
TARGET void decode(const void* from, float* to, size_t count) {
  const auto* next = static_cast<const char*>(from);
  size_t i = 0;
  for (; i + Format::kValues <= count; i += Format::kValues, next += kBlockBytes<Format>) {
    Format::template decode<kAdds>(next, to + i);
  }
  if (i == count) return;
  char encoded[kBlockBytes<Format>] = {};
  float values[Format::kValues] = {};
  std::memcpy(encoded, next, Format::kHead + Format::kEach * (count - i));
  std::memcpy(values, to + i, (count - i) * sizeof(float));
  Format::template decode<kAdds>(encoded, values);
  std::memcpy(to + i, values, (count - i) * sizeof(float));
}

template <typename Format>
constexpr WireKernels kKernels{encode<Format>, decode<Format, false>, decode<Format, true>};

inline WireKernels find_wire(Wire wire) { return wire == Wire::kInt8 ? kKernels<Int8Wire> : kKernels<BFloat16Wire>; }
