#include "transport.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "../kernels/reduce.hpp"
#include "../traffic.hpp"
#include "collectives.hpp"
#include "conversions.hpp"

namespace cpudist::oneccl {

namespace {

// Most bytes and steps of unequal shares that are gathered in one call. MPI_Iallgatherv sends as much as the smallest
// share in each step; with more bytes it makes one step per poll. Intel MPI over TCP also takes some 70 polls for each
// step that a rank sends before its peer is ready: shares of 1, 29 267 and 2 256 bytes took minutes.
constexpr size_t kMostUneven = size_t{64} << 10;
constexpr size_t kMostSteps = 64;

// A large message is 4 to 5 times slower in one call than in pieces of this size.
constexpr size_t kPieceBytes = size_t{4} << 20;

// Several requests as one.
class Several final : public Request {
 public:
  explicit Several(std::vector<RequestPtr> requests) : requests_(std::move(requests)) {}
  Progress test() override { return test_all(requests_); }

 private:
  std::vector<RequestPtr> requests_;
};

class OneCcl final : public AcrossMachines {
  // Returns the function that divides an average after the sum.
  auto divided(bool wanted, void* output, DataType type) const {
    return [=, this](size_t offset, size_t length, const std::byte*) {
      if (wanted) kernels::divide(at(output, offset, type), at(output, offset, type), length, type, size());
    };
  }

 public:
  OneCcl(const Group& group, std::unique_ptr<Hierarchy> hierarchy)
      : AcrossMachines(group.wire, std::move(hierarchy)), communicator_(group) {
    if (wire_ == Wire::kFloat32) return;
    PrefixStore store(group.store, "sums");
    sums_.emplace(Group{group.rank, group.size, group.nodes, group.timeout, &store});
  }

  // An allreduce of one byte, because ccl::barrier waits for the peers before it returns.
  RequestPtr barrier() override {
    oneccl_traffic.count(0);
    return pieces(1, 1, [this](size_t, size_t) {
      auto nothing = allocate(1);
      auto call = ccl::allreduce(nothing.get(), nothing.get(), 1, ccl::datatype::int8, ccl::reduction::sum, raw());
      return Issued(std::move(call), std::move(nothing));
    });
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    oneccl_traffic.count(count * size_of(type));
    return pieces(count, size_of(type), [=, this](size_t offset, size_t length) {
      return ccl::broadcast(at(data, offset, type), length, to_ccl_bits(type), root, raw());
    });
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    oneccl_traffic.count(count * size_of(type));
    const bool receives = rank() == root;
    if (is_bitwise(reduction)) return gather_and_reduce(input, receives ? output : nullptr, count, type, reduction);
    const Average average(reduction, type);
    return pieces(
        count, size_of(type),
        [=, this](size_t offset, size_t length) {
          const auto* from = at(input, offset, type);
          // oneCCL writes to the output of every rank.
          auto scratch = receives ? nullptr : allocate(length * size_of(type));
          void* to = receives ? at(output, offset, type) : scratch.get();
          if (average.before) {
            kernels::divide(from, to, length, type, size());
            from = static_cast<const std::byte*>(to);
          }
          return Issued(ccl::reduce(from, to, length, to_ccl(type), to_ccl(reduction), root, raw()),
                        std::move(scratch));
        },
        divided(average.after && receives, output, type));
  }

  // A piece is gathered in one buffer, because oneCCL's allgatherv into several waits for the peers before it returns.
  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    const size_t width = size_of(type);
    const size_t ranks = outputs.size();
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    const size_t longest = *most;
    const size_t total = sum(counts);
    const bool one_call =
        *least == longest || (total * width <= kMostUneven && longest <= kMostSteps * std::max<size_t>(*least, 1));
    if (!one_call) return broadcast_each(input, outputs, counts, type);
    oneccl_traffic.count(total * width);
    const auto whole = flat(outputs, counts, width);
    return pieces(
        longest, width * ranks,
        [=, this](size_t offset, size_t length) {
          const auto lengths = parts(counts, offset, length);
          auto scratch = whole && length == longest ? nullptr : allocate(sum(lengths) * width);
          void* to = scratch ? scratch.get() : *whole;
          auto call = ccl::allgatherv(at(input, offset, type), lengths[rank()], to, lengths, to_ccl_bits(type), raw());
          return Issued(std::move(call), std::move(scratch));
        },
        [=, outputs = std::move(outputs)](size_t offset, size_t length, const std::byte* next) {
          if (next != nullptr) unpack(next, outputs, offset, parts(counts, offset, length), width);
        });
  }

  // A piece consists of a part of every rank's share, which oneCCL needs contiguous.
  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const bool even = std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
    if (!even || is_bitwise(reduction)) return reduce_to_each(inputs, output, counts, type, reduction);
    const size_t count = counts.front();
    const Average average(reduction, type);
    const size_t width = size_of(type);
    const size_t ranks = inputs.size();
    oneccl_traffic.count(ranks * count * width);
    const auto whole = flat(inputs, counts, width);
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
              kernels::divide(at(inputs[r], offset, type), part, length, type, size());
            } else {
              std::memcpy(part, at(inputs[r], offset, type), length * width);
            }
          }
          auto call = ccl::reduce_scatter(scratch.get(), to, length, to_ccl(type), to_ccl(reduction), raw());
          return Issued(std::move(call), std::move(scratch));
        },
        divided(average.after, output, type));
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    oneccl_traffic.count(std::max(sum(input_counts), sum(output_counts)) * size_of(type));
    return one_piece([=, this] {
      return oneccl::alltoall(communicator_, inputs, input_counts, outputs, output_counts, size_of(type),
                              to_ccl_bits(type));
    });
  }

  RequestPtr with_agreed_counts(const char* name, const std::vector<size_t>& counts,
                                const std::function<RequestPtr()>& call) override {
    std::vector<RequestPtr> requests;
    requests.push_back(one_piece([=, this] { return agree(communicator_, name, counts); }));
    requests.push_back(call());
    return std::make_unique<Several>(std::move(requests));
  }

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    return message(bytes, [=, this](size_t offset, size_t length) {
      // oneCCL's send takes a non-const pointer, but only reads.
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
  static std::byte* at(void* data, size_t offset, DataType type) {
    return static_cast<std::byte*>(data) + offset * size_of(type);
  }
  static const std::byte* at(const void* data, size_t offset, DataType type) {
    return static_cast<const std::byte*>(data) + offset * size_of(type);
  }

  const ccl::communicator& raw() const { return communicator_.raw(); }
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  RequestPtr exact(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    oneccl_traffic.count(count * size_of(type));
    if (is_bitwise(reduction)) return gather_and_reduce(input, output, count, type, reduction);
    const Average average(reduction, type);
    return pieces(
        count, size_of(type),
        [=, this](size_t offset, size_t length) {
          const auto* from = at(input, offset, type);
          auto* to = at(output, offset, type);
          if (average.before) kernels::divide(std::exchange(from, to), to, length, type, size());
          return ccl::allreduce(from, to, length, to_ccl(type), to_ccl(reduction), raw());
        },
        divided(average.after, output, type));
  }

  RequestPtr compressed(float* data, float* residual, size_t count, bool average) override {
    oneccl_traffic.count(count * sizeof(float));
    constexpr size_t kMost = (size_t{2} << 20) / sizeof(float);
    return std::make_unique<Pieces>(communicator_.order, pieces_of(count, kMost), [=, this](size_t piece, uint64_t) {
      const size_t first = piece * kMost;
      auto* const errors = residual == nullptr ? nullptr : residual + first;
      const CompressedSum sum(data + first, errors, part(count, first, kMost), wire_, average, rank(), size());
      return compressed_allreduce(communicator_, *sums_, turns_, turns_.given++, sum);
    });
  }

  static constexpr auto kNothing = [](size_t, size_t, const std::byte*) {};

  template <typename Issue, typename Finish = decltype(kNothing)>
  RequestPtr pieces(size_t count, size_t width, Issue issue, Finish finish = kNothing) {
    const size_t most = std::max<size_t>(kPieceBytes / width, 1);
    const size_t number = count == 0 ? 0 : pieces_of(count, most);
    return std::make_unique<Pieces>(communicator_.order, number, [=, this](size_t piece, uint64_t) {
      return oneccl::piece(communicator_, piece * most, part(count, piece * most, most), issue, finish);
    });
  }

  template <typename Start>
  RequestPtr one_piece(Start start) {
    return std::make_unique<Pieces>(communicator_.order, 1, [=](size_t, uint64_t) { return start(); });
  }

  template <typename Issue>
  RequestPtr message(size_t bytes, Issue issue) {
    oneccl_traffic.count(bytes);
    return std::make_unique<Task>(oneccl::message(bytes, communicator_.round_bytes(), std::move(issue)));
  }

  // An allgather as one broadcast from each rank.
  RequestPtr broadcast_each(const void* input, const std::vector<void*>& outputs, const std::vector<size_t>& counts,
                            DataType type) {
    auto* const own = outputs[rank()];
    if (own != input && counts[rank()] > 0) std::memcpy(own, input, counts[rank()] * size_of(type));
    std::vector<RequestPtr> requests;
    for (int root = 0; root < size(); ++root) requests.push_back(broadcast(outputs[root], counts[root], type, root));
    return std::make_unique<Several>(std::move(requests));
  }

  // A reduction that oneCCL does not have: gathers the buffers of all ranks, and reduces them here. If `output` is
  // null, this rank takes part but computes nothing.
  RequestPtr gather_and_reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) {
    const auto ranks = static_cast<size_t>(size());
    const size_t width = size_of(type);
    return pieces(
        count, width * ranks,
        [=, this](size_t offset, size_t length) {
          const ccl::vector_class<size_t> lengths(ranks, length);
          auto gathered = allocate(ranks * length * width);
          auto call =
              ccl::allgatherv(at(input, offset, type), length, gathered.get(), lengths, to_ccl_bits(type), raw());
          return Issued(std::move(call), std::move(gathered));
        },
        [=, this](size_t offset, size_t length, const std::byte* gathered) {
          if (output == nullptr) return;
          std::vector<const void*> sources;
          for (size_t r = 0; r < ranks; ++r) sources.push_back(gathered + r * length * width);
          kernels::reduction(type, reduction)(at(output, offset, type), nullptr, sources.data(), size(), size(),
                                              length);
        });
  }

  // A reduce_scatter as one reduction to each rank: oneCCL's takes only equal shares, and no bitwise reduction.
  RequestPtr reduce_to_each(const std::vector<const void*>& inputs, void* output, const std::vector<size_t>& counts,
                            DataType type, Reduction reduction) {
    std::vector<RequestPtr> requests;
    for (int root = 0; root < size(); ++root) {
      requests.push_back(reduce(inputs[root], root == rank() ? output : nullptr, counts[root], type, reduction, root));
    }
    return std::make_unique<Several>(std::move(requests));
  }

  Communicator communicator_;
  std::optional<Communicator> sums_;  // this one and turns_ are for compressed_allreduce
  Turns turns_;
};

}  // namespace

TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy) {
  return std::make_unique<OneCcl>(group, std::move(hierarchy));
}

}  // namespace cpudist::oneccl
