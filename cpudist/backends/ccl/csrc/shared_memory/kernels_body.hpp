// The reductions in vectors of WIDTH bytes. kernels.cpp includes this once per instruction set, each time in a
// namespace of its own, with WIDTH, TARGET (the functions' attribute) and the conversions load_half, store_half set.
// No include guard, on purpose.

// A vector type's bytes from and to any address.
template <typename Vector>
TARGET inline Vector load_vector(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename Vector>
TARGET inline void store_vector(void* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

// Elements that are computed in their own type.
template <typename Number>
struct Own {
  typedef Number Vector __attribute__((vector_size(WIDTH)));
  static constexpr size_t kElement = sizeof(Number);
  static constexpr size_t kStride = WIDTH;  // bytes in memory that make up one vector
  TARGET static inline Vector load(const void* from) { return load_vector<Vector>(from); }
  TARGET static inline void store(void* to, Vector vector) { store_vector(to, vector); }
};

typedef float Floats __attribute__((vector_size(WIDTH)));
typedef uint32_t Words __attribute__((vector_size(WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(WIDTH / 2)));

// The upper half of a float32.
struct BFloat16 {
  using Vector = Floats;
  static constexpr size_t kElement = 2;
  static constexpr size_t kStride = WIDTH / 2;
  TARGET static inline Floats load(const void* from) {
    return (Floats)(__builtin_convertvector(load_vector<Halves>(from), Words) << 16);
  }
  TARGET static inline void store(void* to, Floats value) {
    const Words bits = (Words)value;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    const Words nan = rounded * 0 + 0x7fc0;
    store_vector(to, __builtin_convertvector(value == value ? rounded : nan, Halves));
  }
};

struct Float16 {
  using Vector = Floats;
  static constexpr size_t kElement = 2;
  static constexpr size_t kStride = WIDTH / 2;
  TARGET static inline Floats load(const void* from) { return load_half(from); }
  TARGET static inline void store(void* to, Floats value) { store_half(to, value); }
};

struct Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a + b;
  }
  template <typename V>
  TARGET static inline V finish(V total, int) {
    return total;
  }
};

struct Average : Sum {
  template <typename V>
  TARGET static inline V finish(V total, int ranks) {
    using Number = std::remove_cvref_t<decltype(total[0])>;
    return total / static_cast<Number>(ranks);  // of integers: towards zero
  }
};

struct Product : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a * b;
  }
};

// A NaN wins, as in torch: it must not get lost on the way. (Of an integer, a != a is never true.)
struct Minimum : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};

struct Maximum : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// One vector of the result, from `offset` bytes into each source.
template <typename Element, typename Operation>
TARGET inline typename Element::Vector combined(const void* const* sources, int count, size_t offset) {
  auto total = Element::load(static_cast<const char*>(sources[0]) + offset);
  for (int source = 1; source < count; ++source) {
    total = Operation::combine(total, Element::load(static_cast<const char*>(sources[source]) + offset));
  }
  return Operation::finish(total, count);
}

// What is left at the end and does not fill a vector: the same on copies that do.
template <typename Element, typename Operation>
TARGET void reduce_rest(char* output, char* copy, const void* const* sources, int count, size_t offset, size_t rest) {
  char buffer[Element::kStride] = {};
  std::memcpy(buffer, static_cast<const char*>(sources[0]) + offset, rest);
  auto total = Element::load(buffer);
  for (int source = 1; source < count; ++source) {
    std::memcpy(buffer, static_cast<const char*>(sources[source]) + offset, rest);
    total = Operation::combine(total, Element::load(buffer));
  }
  Element::store(buffer, Operation::finish(total, count));
  std::memcpy(output + offset, buffer, rest);
  if (copy != nullptr) std::memcpy(copy + offset, buffer, rest);
}

template <typename Element, typename Operation>
TARGET void reduce(void* output, void* copy, const void* const* sources, int count, size_t elements) {
  auto* const to = static_cast<char*>(output);
  auto* const also = static_cast<char*>(copy);
  const size_t bytes = elements * Element::kElement;
  const size_t whole = bytes / Element::kStride * Element::kStride;
  if (also == nullptr) {
    for (size_t offset = 0; offset < whole; offset += Element::kStride) {
      Element::store(to + offset, combined<Element, Operation>(sources, count, offset));
    }
  } else {
    for (size_t offset = 0; offset < whole; offset += Element::kStride) {
      const auto total = combined<Element, Operation>(sources, count, offset);
      Element::store(to + offset, total);
      Element::store(also + offset, total);
    }
  }
  if (whole < bytes) reduce_rest<Element, Operation>(to, also, sources, count, whole, bytes - whole);
}

template <typename Element>
Reduce of_comparison(Reduction reduction) {
  return reduction == Reduction::kMin ? reduce<Element, Minimum> : reduce<Element, Maximum>;
}

template <typename Element>
Reduce of_floats(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return reduce<Element, Sum>;
    case Reduction::kAverage: return reduce<Element, Average>;
    case Reduction::kProduct: return reduce<Element, Product>;
    default: return of_comparison<Element>(reduction);
  }
}

// Sums and products are computed without a sign, where wrapping around is defined and the bits are the same. An average
// of signed numbers adds up the same bits and divides with the sign.
template <typename Integer>
struct SignedAverage {
  using Unsigned = Own<std::make_unsigned_t<Integer>>;
  struct Operation : Sum {
    TARGET static inline typename Unsigned::Vector finish(typename Unsigned::Vector total, int ranks) {
      using Signed = typename Own<Integer>::Vector;
      return (typename Unsigned::Vector)Average::finish((Signed)total, ranks);
    }
  };
};

template <typename Integer>
Reduce of_integers(Reduction reduction) {
  using Unsigned = Own<std::make_unsigned_t<Integer>>;
  switch (reduction) {
    case Reduction::kSum: return reduce<Unsigned, Sum>;
    case Reduction::kProduct: return reduce<Unsigned, Product>;
    case Reduction::kAverage: return reduce<Unsigned, typename SignedAverage<Integer>::Operation>;
    default: return of_comparison<Own<Integer>>(reduction);
  }
}

inline Reduce find(DataType type, Reduction reduction) {
  switch (type) {
    case DataType::kInt8: return of_integers<int8_t>(reduction);
    case DataType::kUint8: return of_integers<uint8_t>(reduction);
    case DataType::kInt16: return of_integers<int16_t>(reduction);
    case DataType::kInt32: return of_integers<int32_t>(reduction);
    case DataType::kInt64: return of_integers<int64_t>(reduction);
    case DataType::kFloat16: return of_floats<Float16>(reduction);
    case DataType::kBFloat16: return of_floats<BFloat16>(reduction);
    case DataType::kFloat32: return of_floats<Own<float>>(reduction);
    case DataType::kFloat64: return of_floats<Own<double>>(reduction);
  }
  return nullptr;
}
