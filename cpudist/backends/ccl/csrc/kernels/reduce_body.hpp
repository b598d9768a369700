// The reductions in vectors of WIDTH bytes. reduce.cpp includes this file once per instruction set, each time in
// another namespace, with WIDTH, TARGET (the functions' attribute) and the conversions load_half and store_half
// defined. So it has no include guard.

// Load and store a vector at any address.
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

// Elements that are reduced in their own type.
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

// The values of 16-bit elements in two vectors: the elements at even places, which are the lower halves of the 32-bit
// words in memory, and those at odd places, which are the upper halves.
struct Pair {
  Floats even;
  Floats odd;
};

// The upper half of a float32.
struct BFloat16 {
  using Vector = Pair;
  static constexpr size_t kElement = 2;
  static constexpr size_t kStride = WIDTH;
  TARGET static inline Pair load(const void* from) {
    const auto words = load_vector<Words>(from);
    return {(Floats)(words << 16), (Floats)(words & 0xffff0000)};
  }
  TARGET static inline void store(void* to, Pair value) {
    store_vector(to, (rounded(value.even) >> 16) | (rounded(value.odd) & 0xffff0000));
  }
  // Rounds to nearest, ties to even; the caller cuts off the lower half. Every NaN becomes the same quiet NaN.
  TARGET static inline Words rounded(Floats value) {
    const auto bits = (Words)value;
    const Words nan = bits * 0 + 0x7fc00000;
    return value == value ? bits + 0x7fff + ((bits >> 16) & 1) : nan;
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

// Integers are divided as 64-bit numbers, because a divisor of more than 127 ranks does not fit an int8.
struct Average : Sum {
  template <typename V>
  TARGET static inline V finish(V total, int divisor) {
    using Number = std::remove_cvref_t<decltype(total[0])>;
    if constexpr (std::is_floating_point_v<Number>) {
      return total / static_cast<Number>(divisor);
    } else {
      using Wide = std::conditional_t<std::is_signed_v<Number>, int64_t, uint64_t>;
      for (size_t i = 0; i < sizeof(V) / sizeof(Number); ++i) {
        total[i] = static_cast<Number>(static_cast<Wide>(total[i]) / static_cast<Wide>(divisor));
      }
      return total;
    }
  }
};

struct Product : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a * b;
  }
};

struct BitAnd : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a & b;
  }
};

struct BitOr : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a | b;
  }
};

struct BitXor : Sum {
  template <typename V>
  TARGET static inline V combine(V a, V b) {
    return a ^ b;
  }
};

// If one of the elements is NaN, the result is NaN, as in torch. (For integers, a != a is never true.)
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

template <typename Operation, typename V>
TARGET inline V combine(V a, V b) {
  return Operation::combine(a, b);
}
template <typename Operation>
TARGET inline Pair combine(Pair a, Pair b) {
  return {Operation::combine(a.even, b.even), Operation::combine(a.odd, b.odd)};
}
template <typename Operation, typename V>
TARGET inline V finish(V total, int divisor) {
  return Operation::finish(total, divisor);
}
template <typename Operation>
TARGET inline Pair finish(Pair total, int divisor) {
  return {Operation::finish(total.even, divisor), Operation::finish(total.odd, divisor)};
}

// Computes one vector of the result, from `offset` bytes into each source.
template <typename Element, typename Operation>
TARGET inline typename Element::Vector combined(const void* const* sources, int count, int divisor, size_t offset) {
  auto total = Element::load(static_cast<const char*>(sources[0]) + offset);
  for (int source = 1; source < count; ++source) {
    total = combine<Operation>(total, Element::load(static_cast<const char*>(sources[source]) + offset));
  }
  return finish<Operation>(total, divisor);
}

// Reduces the elements at the end that do not fill a vector, in padded buffers.
template <typename Element, typename Operation>
TARGET void reduce_rest(char* output, char* copy, const void* const* sources, int count, int divisor, size_t offset,
                        size_t rest) {
  char buffer[Element::kStride] = {};
  std::memcpy(buffer, static_cast<const char*>(sources[0]) + offset, rest);
  auto total = Element::load(buffer);
  for (int source = 1; source < count; ++source) {
    std::memcpy(buffer, static_cast<const char*>(sources[source]) + offset, rest);
    total = combine<Operation>(total, Element::load(buffer));
  }
  Element::store(buffer, finish<Operation>(total, divisor));
  std::memcpy(output + offset, buffer, rest);
  if (copy != nullptr) std::memcpy(copy + offset, buffer, rest);
}

template <typename Element, typename Operation>
TARGET void reduce(void* output, void* copy, const void* const* sources, int count, int divisor, size_t elements) {
  auto* const to = static_cast<char*>(output);
  auto* const also = static_cast<char*>(copy);
  const size_t bytes = elements * Element::kElement;
  const size_t whole = bytes / Element::kStride * Element::kStride;
  if (also == nullptr) {
    for (size_t offset = 0; offset < whole; offset += Element::kStride) {
      Element::store(to + offset, combined<Element, Operation>(sources, count, divisor, offset));
    }
  } else {
    for (size_t offset = 0; offset < whole; offset += Element::kStride) {
      const auto total = combined<Element, Operation>(sources, count, divisor, offset);
      Element::store(to + offset, total);
      Element::store(also + offset, total);
    }
  }
  if (whole < bytes) reduce_rest<Element, Operation>(to, also, sources, count, divisor, whole, bytes - whole);
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

// Sums and products are computed on unsigned numbers: their overflow is defined, and the bits are the same. An average
// of signed numbers adds unsigned and divides signed.
template <typename Integer>
struct SignedAverage {
  using Unsigned = Own<std::make_unsigned_t<Integer>>;
  struct Operation : Sum {
    TARGET static inline typename Unsigned::Vector finish(typename Unsigned::Vector total, int divisor) {
      using Signed = typename Own<Integer>::Vector;
      return (typename Unsigned::Vector)Average::finish((Signed)total, divisor);
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
    case Reduction::kBitAnd: return reduce<Unsigned, BitAnd>;
    case Reduction::kBitOr: return reduce<Unsigned, BitOr>;
    case Reduction::kBitXor: return reduce<Unsigned, BitXor>;
    default: return of_comparison<Own<Integer>>(reduction);
  }
}

inline Reduce find(DataType type, Reduction reduction) {
  switch (type) {
    case DataType::kInt8: return of_integers<int8_t>(reduction);
    case DataType::kBool:
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
