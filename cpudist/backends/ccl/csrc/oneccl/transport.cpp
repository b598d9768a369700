#include "transport.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "../kernels/reduce.hpp"
#include "../traffic.hpp"
#include "agreement.hpp"
#include "alltoall.hpp"
#include "conversions.hpp"
#include "exchange.hpp"

namespace cpudist::oneccl {

namespace {

// Bytes of unequal shares that are gathered in one call. With more, MPI_Iallgatherv works in steps of the smallest share
// and makes one step in each poll.
constexpr size_t kMostUneven = size_t{64} << 10;

class OneCcl final : public Transport {
  // The division of an average that is done after the sum.
  auto divided(bool wanted, void* output, DataType type) const {
    return [=, this](size_t offset, size_t length) {
      if (wanted) kernels::divide(at(output, offset, type), at(output, offset, type), length, type, size());
    };
  }

 public:
  OneCcl(const Group& group, std::unique_ptr<Hierarchy> hierarchy)
      : wire_(group.wire), communicator_(group), hierarchy_(std::move(hierarchy)) {
    if (wire_ == Wire::kFloat32) return;
    PrefixStore store(group.store, "sums");
    sums_.emplace(Group{group.rank, group.size, group.nodes, group.timeout, &store});
  }

  // ccl::barrier waits for the peers before it returns.
  RequestPtr barrier() override {
    oneccl_traffic.count(0);
    return pieces(1, 1, [this](size_t, size_t) {
      auto nothing = std::make_unique<char[]>(1);
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

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    if (hierarchy_ && Hierarchy::takes(type, reduction)) {
      return hierarchy_->allreduce(input, output, nullptr, count, type, reduction);
    }
    oneccl_traffic.count(count * size_of(type));
    if (is_bitwise(reduction)) return gather_and_reduce(input, output, count, type, reduction);
    if (converts(count, type, reduction)) {
      return exchange(static_cast<const float*>(input), static_cast<float*>(output), nullptr, count, reduction);
    }
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

  RequestPtr allreduce_with_residual(float* data, float* residual, size_t count, Reduction reduction) override {
    if (hierarchy_) return hierarchy_->allreduce(data, data, residual, count, DataType::kFloat32, reduction);
    if (!converts(count, DataType::kFloat32, reduction)) {
      return allreduce(data, data, count, DataType::kFloat32, reduction);
    }
    oneccl_traffic.count(count * sizeof(float));
    return exchange(data, data, residual, count, reduction);
  }

  void keep_own(float* residual, size_t count) const override {
    if (hierarchy_) hierarchy_->keep_own(residual, count);
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
          Scratch scratch;
          // oneCCL writes to the output of every rank.
          if (!receives) scratch = allocate(length * size_of(type));
          void* to = receives ? at(output, offset, type) : scratch.get();
          if (average.before) {
            kernels::divide(from, to, length, type, size());
            from = static_cast<const char*>(to);
          }
          return Issued(ccl::reduce(from, to, length, to_ccl(type), to_ccl(reduction), root, raw()),
                        std::move(scratch));
        },
        divided(average.after && receives, output, type));
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override;

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const bool even = std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
    return even && !is_bitwise(reduction)
               ? even_reduce_scatter(std::move(inputs), output, counts.front(), type, reduction)
               : uneven_reduce_scatter(inputs, output, counts, type, reduction);
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override;

  RequestPtr with_agreed_counts(const char* name, const std::vector<size_t>& counts,
                                const std::function<RequestPtr()>& call) override {
    auto agreement = std::make_unique<Agreement>(communicator_, name, counts);
    agreement->then(call());
    return agreement;
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
  static char* at(void* data, size_t offset, DataType type) {
    return static_cast<char*>(data) + offset * size_of(type);
  }
  static const char* at(const void* data, size_t offset, DataType type) {
    return static_cast<const char*>(data) + offset * size_of(type);
  }

  const ccl::communicator& raw() const { return communicator_.raw(); }
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  // Whether an allreduce crosses the network in the group's format.
  bool converts(size_t count, DataType type, Reduction reduction) const {
    const bool adds = reduction == Reduction::kSum || reduction == Reduction::kAverage;
    return sums_ && type == DataType::kFloat32 && adds && count * size_of(type) >= kShortestExchange;
  }

  RequestPtr exchange(const float* input, float* output, float* residual, size_t count, Reduction reduction) {
    return std::make_unique<Exchange>(communicator_, *sums_, buffers_, input, output, residual, count, wire_,
                                      reduction == Reduction::kAverage);
  }

  static constexpr auto kNothing = [](size_t, size_t) {};

  template <typename Issue, typename Finish = decltype(kNothing)>
  RequestPtr pieces(size_t count, size_t width, Issue issue, Finish finish = kNothing) {
    return std::make_unique<Pieces<Issue, Finish>>(communicator_, count, std::max<size_t>(kPieceBytes / width, 1),
                                                   std::move(issue), std::move(finish));
  }

  template <typename Issue>
  RequestPtr message(size_t bytes, Issue issue) {
    oneccl_traffic.count(bytes);
    return std::make_unique<PointToPoint<Issue>>(bytes, communicator_.round_bytes(), std::move(issue));
  }

  RequestPtr broadcast_each(const void* input, const std::vector<void*>& outputs, const std::vector<size_t>& counts,
                            DataType type);
  RequestPtr gather_and_reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction);
  RequestPtr even_reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, DataType type,
                                 Reduction reduction);
  RequestPtr uneven_reduce_scatter(const std::vector<const void*>& inputs, void* output,
                                   const std::vector<size_t>& counts, DataType type, Reduction reduction);

  const Wire wire_;
  Communicator communicator_;
  std::optional<Communicator> sums_;  // for Exchange
  Buffers buffers_;
  std::unique_ptr<Hierarchy> hierarchy_;  // may be null
};

// A piece is gathered in one buffer: oneCCL's allgatherv into several waits for the peers before it returns.
RequestPtr OneCcl::allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts, DataType type) {
  const size_t width = size_of(type);
  const size_t ranks = outputs.size();
  const size_t longest = *std::max_element(counts.begin(), counts.end());
  const size_t total = sum(counts);
  if (total != longest * ranks && total * width > kMostUneven) return broadcast_each(input, outputs, counts, type);
  oneccl_traffic.count(total * width);
  const auto whole = flat(outputs, counts, width);
  const auto lengths = [counts](size_t offset, size_t length) {
    ccl::vector_class<size_t> result;
    for (const size_t count : counts) result.push_back(count > offset ? std::min(count - offset, length) : 0);
    return result;
  };
  const auto gathered = std::make_shared<std::map<size_t, Scratch>>();  // by offset, of the pieces in flight
  return pieces(
      longest, width * ranks,
      [=, this](size_t offset, size_t length) {
        const auto parts = lengths(offset, length);
        void* to = whole && length == longest ? *whole : nullptr;
        if (!to) {
          const size_t gathered_here = sum(parts);
          to = ((*gathered)[offset] = allocate(gathered_here * width)).get();
        }
        return ccl::allgatherv(at(input, offset, type), parts[rank()], to, parts, to_ccl_bits(type), raw());
      },
      [=, outputs = std::move(outputs)](size_t offset, size_t length) {
        const auto piece = gathered->extract(offset);
        if (piece.empty()) return;
        const auto parts = lengths(offset, length);
        const char* next = piece.mapped().get();
        for (size_t r = 0; r < ranks; ++r) {
          if (parts[r] > 0) std::memcpy(at(outputs[r], offset, type), next, parts[r] * width);
          next += parts[r] * width;
        }
      });
}

// An allgather as one broadcast from each rank.
RequestPtr OneCcl::broadcast_each(const void* input, const std::vector<void*>& outputs,
                                  const std::vector<size_t>& counts, DataType type) {
  auto* const own = outputs[rank()];
  if (own != input && counts[rank()] > 0) std::memcpy(own, input, counts[rank()] * size_of(type));
  std::vector<RequestPtr> requests;
  for (int root = 0; root < size(); ++root) requests.push_back(broadcast(outputs[root], counts[root], type, root));
  return std::make_unique<Several>(std::move(requests));
}

// A reduction that oneCCL does not have: gathers the buffers of all ranks, and reduces them here. A null `output`: only
// takes part.
RequestPtr OneCcl::gather_and_reduce(const void* input, void* output, size_t count, DataType type,
                                     Reduction reduction) {
  const auto ranks = static_cast<size_t>(size());
  const size_t width = size_of(type);
  const auto gathered = std::make_shared<std::map<size_t, Scratch>>();  // by offset, of the pieces in flight
  return pieces(
      count, width * ranks,
      [=, this](size_t offset, size_t length) {
        const ccl::vector_class<size_t> lengths(ranks, length);
        auto* to = ((*gathered)[offset] = allocate(ranks * length * width)).get();
        return ccl::allgatherv(at(input, offset, type), length, to, lengths, to_ccl_bits(type), raw());
      },
      [=, this](size_t offset, size_t length) {
        const auto pieces = std::move(gathered->extract(offset).mapped());
        if (output == nullptr) return;
        std::vector<const void*> sources;
        for (size_t r = 0; r < ranks; ++r) sources.push_back(pieces.get() + r * length * width);
        kernels::reduction(type, reduction)(at(output, offset, type), nullptr, sources.data(), size(), size(), length);
      });
}

// A piece consists of a part of every rank's share, which oneCCL needs contiguous.
RequestPtr OneCcl::even_reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, DataType type,
                                       Reduction reduction) {
  const Average average(reduction, type);
  const size_t width = size_of(type);
  const size_t ranks = inputs.size();
  oneccl_traffic.count(ranks * count * width);
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

// oneCCL's reduce_scatter takes equal shares only, so this is one reduction to each rank.
RequestPtr OneCcl::uneven_reduce_scatter(const std::vector<const void*>& inputs, void* output,
                                         const std::vector<size_t>& counts, DataType type, Reduction reduction) {
  std::vector<RequestPtr> requests;
  for (int root = 0; root < size(); ++root) {
    requests.push_back(reduce(inputs[root], root == rank() ? output : nullptr, counts[root], type, reduction, root));
  }
  return std::make_unique<Several>(std::move(requests));
}

RequestPtr OneCcl::alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts,
                            std::vector<void*> outputs, std::vector<size_t> output_counts, DataType type) {
  oneccl_traffic.count(std::max(sum(input_counts), sum(output_counts)) * size_of(type));
  return std::make_unique<Alltoall>(communicator_, std::move(inputs), std::move(input_counts), std::move(outputs),
                                    std::move(output_counts), size_of(type), to_ccl_bits(type));
}

}  // namespace

TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy) {
  return std::make_unique<OneCcl>(group, std::move(hierarchy));
}

}  // namespace cpudist::oneccl
