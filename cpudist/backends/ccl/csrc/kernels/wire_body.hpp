// The conversions of wire.hpp in vectors of WIDTH bytes. reduce.cpp includes this file as it does reduce_body.hpp, and
// without contraction of a multiplication and an addition, which would round differently where the processor has it.

constexpr size_t kLanes = WIDTH / 4;
typedef int32_t Integers __attribute__((vector_size(WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(WIDTH / 2)));
typedef int8_t Bytes __attribute__((vector_size(WIDTH / 4)));

TARGET inline Floats of_bfloat16(Halves halves) { return (Floats)(__builtin_convertvector(halves, Words) << 16); }

// Converts the kLanes values at `from`.
TARGET inline void encode_bfloat16s(const float* from, char* to, float* lost) {
  const auto value = load_vector<Floats>(from);
  const auto halves = __builtin_convertvector(BFloat16::rounded(value) >> 16, Halves);
  store_vector(to, halves);
  if (lost == nullptr) return;
  const Floats rest = value - of_bfloat16(halves);
  store_vector(lost, rest - rest == 0 ? rest : Floats{});
}

TARGET void encode_bfloat16(const float* from, void* to, float* lost, size_t count) {
  auto* const bytes = static_cast<char*>(to);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) encode_bfloat16s(from + i, bytes + 2 * i, lost ? lost + i : nullptr);
  if (i == count) return;
  float values[kLanes] = {};
  char encoded[WIDTH / 2];
  float rest[kLanes];
  std::memcpy(values, from + i, (count - i) * sizeof(float));
  encode_bfloat16s(values, encoded, rest);
  std::memcpy(bytes + 2 * i, encoded, 2 * (count - i));
  if (lost != nullptr) std::memcpy(lost + i, rest, (count - i) * sizeof(float));
}

// Stores the decoded values, or adds them to what is there.
template <bool kAdds>
TARGET inline void put(float* to, Floats value) {
  if constexpr (kAdds) value = load_vector<Floats>(to) + value;
  store_vector(to, value);
}

template <bool kAdds>
TARGET void decode_bfloat16(const void* from, float* to, size_t count) {
  const auto* const bytes = static_cast<const char*>(from);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) put<kAdds>(to + i, of_bfloat16(load_vector<Halves>(bytes + 2 * i)));
  if (i == count) return;
  char encoded[WIDTH / 2] = {};
  float values[kLanes] = {};
  std::memcpy(encoded, bytes + 2 * i, 2 * (count - i));
  std::memcpy(values, to + i, (count - i) * sizeof(float));
  put<kAdds>(values, of_bfloat16(load_vector<Halves>(encoded)));
  std::memcpy(to + i, values, (count - i) * sizeof(float));
}

// The largest magnitude of a block; infinity or NaN where there is one, because bits without a sign sort like numbers.
TARGET inline float largest(const float* from) {
  Words most{};
  for (size_t i = 0; i < kWireBlock; i += kLanes) {
    const Words magnitude = load_vector<Words>(from + i) & 0x7fffffff;
    most = most > magnitude ? most : magnitude;
  }
  uint32_t bits = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) bits = bits > most[lane] ? bits : most[lane];
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Converts a whole block.
TARGET inline void encode_block(const float* from, char* to, float* lost) {
  const float most = largest(from);
  const bool finite = most - most == 0;
  const bool tiny = most < 0x1p-100f;  // its inverse would not be finite
  const float scale = tiny ? 0.0f : finite ? most / 127 : most - most;
  const float inverse = tiny || !finite ? 0.0f : 127 / most;
  std::memcpy(to, &scale, sizeof scale);
  for (size_t i = 0; i < kWireBlock; i += kLanes) {
    const auto value = load_vector<Floats>(from + i);
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the lowest bits.
    const Floats shifted = value * inverse + 0x1.8p23f;
    const auto number = (Integers)shifted - 0x4b400000;
    store_vector(to + sizeof scale + i, __builtin_convertvector(number, Bytes));
    if (lost == nullptr) continue;
    store_vector(lost + i, finite ? value - __builtin_convertvector(number, Floats) * scale : Floats{});
  }
}

TARGET void encode_int8(const float* from, void* to, float* lost, size_t count) {
  auto* next = static_cast<char*>(to);
  size_t i = 0;
  for (; i + kWireBlock <= count; i += kWireBlock, next += sizeof(float) + kWireBlock) {
    encode_block(from + i, next, lost ? lost + i : nullptr);
  }
  if (i == count) return;
  float values[kWireBlock] = {};
  float rest[kWireBlock];
  char encoded[sizeof(float) + kWireBlock];
  std::memcpy(values, from + i, (count - i) * sizeof(float));
  encode_block(values, encoded, rest);
  std::memcpy(next, encoded, sizeof(float) + count - i);
  if (lost != nullptr) std::memcpy(lost + i, rest, (count - i) * sizeof(float));
}

template <bool kAdds>
TARGET inline void decode_block(const char* from, float* to) {
  float scale;
  std::memcpy(&scale, from, sizeof scale);
  for (size_t i = 0; i < kWireBlock; i += kLanes) {
    const auto bytes = load_vector<Bytes>(from + sizeof scale + i);
    put<kAdds>(to + i, __builtin_convertvector(bytes, Floats) * scale);
  }
}

template <bool kAdds>
TARGET void decode_int8(const void* from, float* to, size_t count) {
  const auto* next = static_cast<const char*>(from);
  size_t i = 0;
  for (; i + kWireBlock <= count; i += kWireBlock, next += sizeof(float) + kWireBlock)
    decode_block<kAdds>(next, to + i);
  if (i == count) return;
  char encoded[sizeof(float) + kWireBlock] = {};
  float values[kWireBlock] = {};
  std::memcpy(encoded, next, sizeof(float) + count - i);
  std::memcpy(values, to + i, (count - i) * sizeof(float));
  decode_block<kAdds>(encoded, values);
  std::memcpy(to + i, values, (count - i) * sizeof(float));
}

inline WireKernels find_wire(Wire wire) {
  if (wire == Wire::kInt8) return {encode_int8, decode_int8<false>, decode_int8<true>};
  return {encode_bfloat16, decode_bfloat16<false>, decode_bfloat16<true>};
}
