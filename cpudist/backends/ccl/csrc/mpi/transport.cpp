#include "transport.hpp"

#include <algorithm>

#include "../traffic.hpp"
#include "collectives.hpp"

namespace cpudist::mpi {

namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;  // piece of a reduction; pieces are added while others are in flight
constexpr size_t kTreeBytes = size_t{64} << 10;  // broadcasts of no more bytes go down a tree
// Larger broadcasts go along a chain of ranks in pieces. With more and shorter pieces the last rank begins earlier.
constexpr size_t kLinks = 16;
constexpr size_t kShortestLink = size_t{64} << 10;
constexpr size_t kLongestLink = size_t{512} << 10;

Coroutine message(Transfers transfers) { co_await transfers; }

class Mpi final : public AcrossMachines {
 public:
  Mpi(const Group& group, std::unique_ptr<Hierarchy> hierarchy)
      : AcrossMachines(group.wire, std::move(hierarchy)), channel_(group) {}

  RequestPtr barrier() override {
    mpi_traffic.count(0);
    const std::vector<size_t> nothing(ranks(), 0);
    return exchanged(Signature(Operation::kBarrier), std::vector<const std::byte*>(ranks()), nothing,
                     std::vector<std::byte*>(ranks()), nothing);
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    const size_t total = count * size_of(type);
    mpi_traffic.count(total);
    const bool tree = total <= kTreeBytes;
    const size_t most = tree ? kTreeBytes : std::clamp(total / kLinks, kShortestLink, kLongestLink);
    return in_pieces(Signature(Operation::kBroadcast, count, type, root), total, most,
                     [=, this](size_t first, size_t length, int tag) {
                       return mpi::broadcast(channel_, tag, bytes(data) + first, length, root, tree);
                     });
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return reduced(input, output, count, type, reduction, root);
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    const auto signature = Signature(Operation::kAllgather, sum(counts), type).with_hash_of(counts);
    std::vector<std::byte*> to;
    for (size_t r = 0; r < ranks(); ++r) {
      to.push_back(bytes(outputs[r]));
      counts[r] *= size_of(type);
    }
    mpi_traffic.count(sum(counts));
    if (steps_at_once(*std::max_element(counts.begin(), counts.end())) + 1 < channel_.ranks()) {
      return call(signature, [=, this](int tag) { return mpi::all_gather(channel_, tag, bytes(input), to, counts); });
    }
    const std::vector<size_t> sent(ranks(), counts[rank()]);
    const std::vector<const std::byte*> inputs(ranks(), bytes(input));
    return exchanged(signature, inputs, sent, std::move(to), std::move(counts));
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const Combination combination(type, reduction);
    mpi_traffic.count(sum(counts) * combination.width);
    const Signature signature(Operation::kReduceScatter, sum(counts), type, static_cast<int>(reduction));
    const size_t longest = *std::max_element(counts.begin(), counts.end());
    const size_t most = std::max<size_t>(kPieceBytes / (combination.width * ranks()), 1);
    const auto start = [=, this, inputs = std::move(inputs)](size_t first, size_t length, int tag) {
      const auto offset = [&](size_t r) { return std::min(first, counts[r]) * combination.width; };
      std::vector<const std::byte*> from;
      for (size_t r = 0; r < ranks(); ++r) from.push_back(bytes(inputs[r]) + offset(r));
      return mpi::reduce_scatter(channel_, tag, std::move(from), bytes(output) + offset(rank()),
                                 parts(counts, first, length), combination);
    };
    return in_pieces(signature.with_hash_of(counts), longest, most, start);
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (size_t r = 0; r < ranks(); ++r) {
      from.push_back(bytes(inputs[r]));
      to.push_back(bytes(outputs[r]));
      input_counts[r] *= size_of(type);
      output_counts[r] *= size_of(type);
    }
    mpi_traffic.count(std::max(sum(input_counts), sum(output_counts)));
    return exchanged(Signature(Operation::kAlltoall), std::move(from), std::move(input_counts), std::move(to),
                     std::move(output_counts));
  }

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    mpi_traffic.count(bytes);
    Transfers transfers(channel_, channel_.tag_of_messages());
    transfers.send(destination, data, bytes);
    return std::make_unique<Task>(message(std::move(transfers)));
  }

  RequestPtr recv(void* data, size_t bytes, int source) override {
    mpi_traffic.count(bytes);
    Transfers transfers(channel_, channel_.tag_of_messages());
    transfers.receive(source, data, bytes);
    return std::make_unique<Task>(message(std::move(transfers)));
  }

 private:
  RequestPtr exact(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    return reduced(input, output, count, type, reduction, kAllRanks);
  }

  size_t rank() const { return static_cast<size_t>(channel_.rank()); }
  size_t ranks() const { return static_cast<size_t>(channel_.ranks()); }

  RequestPtr call(const Signature& signature, std::function<Coroutine(int tag)> start) {
    return in_pieces(signature, 1, 1, [start = std::move(start)](size_t, size_t, int tag) { return start(tag); });
  }

  // Calls start(first, length, tag) for each piece of no more than `most` elements.
  template <typename Start>
  RequestPtr in_pieces(const Signature& signature, size_t count, size_t most, Start start) {
    return std::make_unique<Pieces>(channel_.order, pieces_of(count, most), [=, this](size_t piece, uint64_t number) {
      const size_t first = piece * most;
      return start(first, part(count, first, most), channel_.tag_of_call(number, signature));
    });
  }

  RequestPtr exchanged(const Signature& signature, std::vector<const std::byte*> inputs,
                       std::vector<size_t> input_bytes, std::vector<std::byte*> outputs,
                       std::vector<size_t> output_bytes) {
    return call(signature,
                [=, this](int tag) { return exchange(channel_, tag, inputs, input_bytes, outputs, output_bytes); });
  }

  RequestPtr reduced(const void* input, void* output, size_t count, DataType type, Reduction reduction, int root) {
    const auto operation = root == kAllRanks ? Operation::kAllreduce : Operation::kReduce;
    const Signature signature(operation, count, type, static_cast<int>(reduction) << 8 | (root & 0xff));
    const Combination combination(type, reduction);
    const size_t total = count * combination.width;
    mpi_traffic.count(total);
    const bool at_once = total * (ranks() - 1) <= kOneStepBytes;
    const size_t most = kPieceBytes / combination.width;
    return in_pieces(signature, count, most, [=, this](size_t first, size_t length, int tag) {
      const auto* from = bytes(input) + first * combination.width;
      auto* to = output == nullptr ? nullptr : bytes(output) + first * combination.width;
      return (at_once ? reduce_at_once : mpi::reduce)(channel_, tag, from, to, length, combination, root);
    });
  }

  RequestPtr compressed(float* data, float* residual, size_t count, bool average) override {
    mpi_traffic.count(count * sizeof(float));
    const Signature signature(Operation::kAllreduce, count, DataType::kFloat32, average);
    return in_pieces(signature, count, kPieceBytes / sizeof(float), [=, this](size_t first, size_t length, int tag) {
      auto* errors = residual == nullptr ? nullptr : residual + first;
      return compressed_allreduce(
          channel_, tag,
          CompressedSum(data + first, errors, length, wire_, average, channel_.rank(), channel_.ranks()));
    });
  }

  Channel channel_;
};

}  // namespace

TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy) {
  return std::make_unique<Mpi>(group, std::move(hierarchy));
}

}  // namespace cpudist::mpi
