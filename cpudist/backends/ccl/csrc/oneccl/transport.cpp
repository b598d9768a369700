#include "transport.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "divide.hpp"
#include "pieces.hpp"

namespace cpudist::oneccl {

namespace {

ccl::datatype to_ccl(DataType type) {
  switch (type) {
    case DataType::kInt8: return ccl::datatype::int8;
    case DataType::kUint8: return ccl::datatype::uint8;
    case DataType::kInt16: return ccl::datatype::int16;
    case DataType::kInt32: return ccl::datatype::int32;
    case DataType::kInt64: return ccl::datatype::int64;
    case DataType::kFloat16: return ccl::datatype::float16;
    case DataType::kBFloat16: return ccl::datatype::bfloat16;
    case DataType::kFloat32: return ccl::datatype::float32;
    case DataType::kFloat64: return ccl::datatype::float64;
  }
  throw std::invalid_argument("unknown data type");
}

ccl::reduction to_ccl(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage: return ccl::reduction::sum;
    case Reduction::kProduct: return ccl::reduction::prod;
    case Reduction::kMin: return ccl::reduction::min;
    case Reduction::kMax: return ccl::reduction::max;
  }
  throw std::invalid_argument("unknown reduction");
}

// How an average is made of a sum. float16 ends at 65504, so its values are divided before they are added.
struct Average {
  Average(Reduction reduction, DataType type)
      : before(reduction == Reduction::kAverage && type == DataType::kFloat16),
        after(reduction == Reduction::kAverage && type != DataType::kFloat16) {}

  bool before;
  bool after;
};

// Where these parts begin if they lie behind each other in memory.
template <typename Pointer>
std::optional<Pointer> flat(const std::vector<Pointer>& parts, const std::vector<size_t>& counts, size_t width) {
  Pointer begin = nullptr;
  const char* next = nullptr;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (!begin) {
      begin = parts[i];
    } else if (parts[i] != next) {
      return std::nullopt;
    }
    next = static_cast<const char*>(parts[i]) + counts[i] * width;
  }
  return begin;
}

size_t total(const std::vector<size_t>& counts) {
  size_t sum = 0;
  for (const size_t count : counts) sum += count;
  return sum;
}

class OneCcl final : public Transport {
  // What remains of an average when the sum is there.
  auto divided(bool wanted, void* output, DataType type) const {
    return [=, this](size_t offset, size_t length) {
      if (wanted) divide(at(output, offset, type), at(output, offset, type), length, type, size());
    };
  }

 public:
  explicit OneCcl(const Group& group) : communicator_(group) {}

  const char* name() const override { return "oneccl"; }

  RequestPtr barrier() override {
    return pieces(1, 1, [this](size_t, size_t) { return ccl::barrier(raw()); });
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    return pieces(count, size_of(type), [=, this](size_t offset, size_t length) {
      return ccl::broadcast(at(data, offset, type), length, to_ccl(type), root, raw());
    });
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    const Average average(reduction, type);
    return pieces(
        count, size_of(type),
        [=, this](size_t offset, size_t length) {
          const auto* from = at(input, offset, type);
          auto* to = at(output, offset, type);
          if (average.before) divide(std::exchange(from, to), to, length, type, size());
          return ccl::allreduce(from, to, length, to_ccl(type), to_ccl(reduction), raw());
        },
        divided(average.after, output, type));
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    const Average average(reduction, type);
    const bool receives = rank() == root;
    return pieces(
        count, size_of(type),
        [=, this](size_t offset, size_t length) {
          const auto* from = at(input, offset, type);
          Scratch scratch;
          // oneCCL writes to the output of every rank.
          if (!receives) scratch = allocate(length * size_of(type));
          void* to = receives ? at(output, offset, type) : scratch.get();
          if (average.before) {
            divide(from, to, length, type, size());
            from = static_cast<const char*>(to);
          }
          return Issued(ccl::reduce(from, to, length, to_ccl(type), to_ccl(reduction), root, raw()),
                        std::move(scratch));
        },
        divided(average.after && receives, output, type));
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    const size_t longest = *std::max_element(counts.begin(), counts.end());
    return pieces(longest, size_of(type),
                  [=, this, outputs = std::move(outputs), counts = std::move(counts)](size_t offset, size_t length) {
                    ccl::vector_class<void*> parts;
                    ccl::vector_class<size_t> lengths;
                    for (size_t r = 0; r < outputs.size(); ++r) {
                      parts.push_back(at(outputs[r], offset, type));
                      lengths.push_back(counts[r] > offset ? std::min(counts[r] - offset, length) : 0);
                    }
                    return ccl::allgatherv(at(input, offset, type), lengths[rank()], parts, lengths, to_ccl(type),
                                           raw());
                  });
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const bool even = std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
    return even ? even_reduce_scatter(std::move(inputs), output, counts.front(), type, reduction)
                : uneven_reduce_scatter(inputs, output, counts, type, reduction);
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override;

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    return message(bytes, [=, this](size_t offset, size_t length) {
      // oneCCL's send takes a pointer to what it only reads.
      auto* from = const_cast<char*>(static_cast<const char*>(data)) + offset;
      return ccl::send(from, length, ccl::datatype::int8, destination, raw());
    });
  }

  RequestPtr recv(void* data, size_t bytes, int source) override {
    return message(bytes, [=, this](size_t offset, size_t length) {
      return ccl::recv(static_cast<char*>(data) + offset, length, ccl::datatype::int8, source, raw());
    });
  }

 private:
  static char* at(void* data, size_t offset, DataType type) {
    return static_cast<char*>(data) + offset * size_of(type);
  }
  static const char* at(const void* data, size_t offset, DataType type) {
    return static_cast<const char*>(data) + offset * size_of(type);
  }

  const ccl::communicator& raw() const { return communicator_.raw(); }
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  static constexpr auto kNothing = [](size_t, size_t) {};

  template <typename Issue, typename Finish = decltype(kNothing)>
  RequestPtr pieces(size_t count, size_t width, Issue issue, Finish finish = kNothing) {
    return std::make_unique<Pieces<Issue, Finish>>(communicator_, count, std::max<size_t>(kPieceBytes / width, 1),
                                                   std::move(issue), std::move(finish));
  }

  template <typename Issue>
  static RequestPtr message(size_t bytes, Issue issue) {
    return std::make_unique<Message<Issue>>(bytes, std::move(issue));
  }

  RequestPtr even_reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, DataType type,
                                 Reduction reduction);
  RequestPtr uneven_reduce_scatter(const std::vector<const void*>& inputs, void* output,
                                   const std::vector<size_t>& counts, DataType type, Reduction reduction);

  Communicator communicator_;
};

// A piece has its part of every rank's share, and oneCCL wants those next to each other.
RequestPtr OneCcl::even_reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, DataType type,
                                       Reduction reduction) {
  const Average average(reduction, type);
  const size_t width = size_of(type);
  const size_t ranks = inputs.size();
  const auto whole = flat(inputs, std::vector<size_t>(ranks, count), width);
  const bool as_it_is = whole && inputs[rank()] != output && !average.before;
  return pieces(
      count, width * ranks,
      [=, this, inputs = std::move(inputs)](size_t offset, size_t length) {
        auto* to = at(output, offset, type);
        if (length == count && as_it_is) {
          return Issued(ccl::reduce_scatter(*whole, to, count, to_ccl(type), to_ccl(reduction), raw()));
        }
        auto scratch = allocate(ranks * length * width);
        for (size_t r = 0; r < ranks; ++r) {
          auto* part = scratch.get() + r * length * width;
          if (average.before) {
            divide(at(inputs[r], offset, type), part, length, type, size());
          } else {
            std::memcpy(part, at(inputs[r], offset, type), length * width);
          }
        }
        auto call = ccl::reduce_scatter(scratch.get(), to, length, to_ccl(type), to_ccl(reduction), raw());
        return Issued(std::move(call), std::move(scratch));
      },
      divided(average.after, output, type));
}

// oneCCL's own takes equal shares only: one reduction to each rank.
RequestPtr OneCcl::uneven_reduce_scatter(const std::vector<const void*>& inputs, void* output,
                                         const std::vector<size_t>& counts, DataType type, Reduction reduction) {
  std::vector<RequestPtr> requests;
  for (int root = 0; root < size(); ++root) {
    requests.push_back(reduce(inputs[root], root == rank() ? output : nullptr, counts[root], type, reduction, root));
  }
  return std::make_unique<Several>(std::move(requests));
}

// oneCCL's all-to-all takes flat buffers only.
RequestPtr OneCcl::alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts,
                            std::vector<void*> outputs, std::vector<size_t> output_counts, DataType type) {
  const size_t width = size_of(type);
  const auto source = flat(inputs, input_counts, width);
  const auto target = flat(outputs, output_counts, width);
  const auto received = std::make_shared<Scratch>(target ? Scratch{} : allocate(total(output_counts) * width));
  return pieces(
      1, 1,
      [=, this](size_t, size_t) {
        Scratch packed;
        if (!source) {
          packed = allocate(total(input_counts) * width);
          auto* next = packed.get();
          for (size_t r = 0; r < inputs.size(); ++r) {
            if (input_counts[r] > 0) std::memcpy(next, inputs[r], input_counts[r] * width);
            next += input_counts[r] * width;
          }
        }
        const void* from = source ? *source : packed.get();
        void* to = target ? *target : received->get();
        return Issued(ccl::alltoallv(from, input_counts, to, output_counts, to_ccl(type), raw()), std::move(packed));
      },
      [=](size_t, size_t) {
        if (target) return;
        const auto* next = received->get();
        for (size_t r = 0; r < outputs.size(); ++r) {
          if (output_counts[r] > 0) std::memcpy(outputs[r], next, output_counts[r] * width);
          next += output_counts[r] * width;
        }
      });
}

}  // namespace

TransportPtr create(const Group& group) { return std::make_unique<OneCcl>(group); }

}  // namespace cpudist::oneccl
