#include "transport.hpp"

#include <algorithm>
#include <cstring>
#include <list>

#include "../kernels/reduce.hpp"
#include "../traffic.hpp"
#include "collectives.hpp"

namespace cpudist::mpi {

namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;   // of a reduction: pieces are added while others are on their way
constexpr size_t kLinkBytes = size_t{512} << 10;  // of a broadcast from rank to rank
constexpr size_t kTreeBytes = size_t{256} << 10;  // broadcasts of no more bytes go down a tree

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

// A collective as one or more pieces; start(piece, tag) begins one.
class Pieces final : public Request {
 public:
  using Start = std::function<Coroutine(size_t piece, int tag)>;

  Pieces(Channel& channel, size_t pieces, Start start) : channel_(channel), pieces_(pieces), start_(std::move(start)) {
    if (pieces_ > 0) channel_.order.push_back(this);
  }

  Progress test() override {
    bool moved = false;
    while (started_ < pieces_ && channel_.may_start(this)) {
      running_.push_back(start_(started_, channel_.start()));
      if (++started_ == pieces_) channel_.order.pop_front();
    }
    for (auto piece = running_.begin(); piece != running_.end();) {
      if (piece->can_resume()) {
        piece->resume();
        moved = true;
      }
      if (piece->done()) {
        piece = running_.erase(piece);
        channel_.finish();
      } else {
        ++piece;
      }
    }
    if (started_ == pieces_ && running_.empty()) return Progress::kComplete;
    return moved ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  Channel& channel_;
  const size_t pieces_;
  const Start start_;
  size_t started_ = 0;
  std::list<Coroutine> running_;
};

class Message final : public Request {
 public:
  explicit Message(Transfers transfers) : transfers_(std::move(transfers)) {}
  Progress test() override { return transfers_.holds() ? Progress::kComplete : Progress::kWaiting; }

 private:
  Transfers transfers_;
};

// The allgather by which ranks leave. Where a rank makes another call instead, the output of that rank stays as it is,
// and the others' outputs are filled: the caller then names the rank.
class Leaving final : public Request {
 public:
  Leaving(RequestPtr all_gather, const void* input, std::vector<void*> outputs, size_t bytes)
      : all_gather_(std::move(all_gather)), input_(input), outputs_(std::move(outputs)), bytes_(bytes) {}

  Progress test() override {
    try {
      return all_gather_->test();
    } catch (const OtherCall& call) {
      for (size_t r = 0; r < outputs_.size(); ++r) {
        if (r != static_cast<size_t>(call.rank)) std::memmove(outputs_[r], input_, bytes_);
      }
      return Progress::kComplete;
    }
  }

 private:
  RequestPtr all_gather_;
  const void* const input_;
  const std::vector<void*> outputs_;
  const size_t bytes_;
};

// A call that starts when the one before it is complete.
class Then final : public Request {
 public:
  Then(RequestPtr first, RequestPtr second) : first_(std::move(first)), second_(std::move(second)) {}

  Progress test() override {
    if (!first_) return second_->test();
    const auto progress = first_->test();
    if (progress != Progress::kComplete) return progress;
    first_.reset();
    return Progress::kMoved;
  }

 private:
  RequestPtr first_;
  RequestPtr second_;
};

class Mpi final : public Transport {
 public:
  Mpi(const Group& group, std::unique_ptr<Hierarchy> hierarchy)
      : wire_(group.wire), channel_(group), hierarchy_(std::move(hierarchy)) {}

  RequestPtr barrier() override {
    mpi_traffic.count(0);
    // An exchange of one byte with every rank.
    static std::byte nothing[2];
    std::vector<const std::byte*> inputs(ranks(), &nothing[0]);
    std::vector<std::byte*> outputs(ranks(), &nothing[1]);
    return exchanged(std::move(inputs), ones(), std::move(outputs), ones());
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    const size_t total = count * size_of(type);
    mpi_traffic.count(total);
    const bool tree = total <= kTreeBytes;
    return in_pieces(total, tree ? kTreeBytes : kLinkBytes, [=, this](size_t first, size_t length, int tag) {
      return mpi::broadcast(channel_, tag, bytes(data) + first, length, root, tree);
    });
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    if (hierarchy_ && Hierarchy::takes(type, reduction)) {
      return hierarchy_->allreduce(input, output, nullptr, count, type, reduction);
    }
    if (kernels::converts(wire_, count, type, reduction)) {
      if (input != output) std::memcpy(output, input, count * sizeof(float));
      return compressed(static_cast<float*>(output), nullptr, count, reduction);
    }
    return reduced(input, output, count, type, reduction, kAllRanks);
  }

  RequestPtr allreduce_with_residual(float* data, float* residual, size_t count) override {
    constexpr auto kType = DataType::kFloat32;
    constexpr auto kReduction = Reduction::kAverage;
    if (hierarchy_) return hierarchy_->allreduce(data, data, residual, count, kType, kReduction);
    if (!kernels::converts(wire_, count, kType, kReduction)) return allreduce(data, data, count, kType, kReduction);
    return compressed(data, residual, count, kReduction);
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return reduced(input, output, count, type, reduction, root);
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    std::vector<std::byte*> to;
    for (size_t r = 0; r < ranks(); ++r) {
      to.push_back(bytes(outputs[r]));
      counts[r] *= size_of(type);
    }
    mpi_traffic.count(sum(counts));
    if (sum(counts) > kOneStepBytes) {
      return call([=, this](int tag) { return mpi::all_gather(channel_, tag, bytes(input), to, counts); });
    }
    const std::vector<size_t> sent(ranks(), counts[rank()]);
    return exchanged(std::vector<const std::byte*>(ranks(), bytes(input)), sent, std::move(to), std::move(counts));
  }

  RequestPtr leave(const void* input, std::vector<void*> outputs, std::vector<size_t> counts) override {
    auto all_gather = allgather(input, outputs, counts, DataType::kUint8);
    return std::make_unique<Leaving>(std::move(all_gather), input, std::move(outputs), counts.front());
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const Combination combination{kernels::reduction(type, reduction), size_of(type)};
    mpi_traffic.count(sum(counts) * combination.width);
    const size_t longest = *std::max_element(counts.begin(), counts.end());
    const size_t most = std::max<size_t>(kPieceBytes / (combination.width * ranks()), 1);
    return in_pieces(longest, most, [=, this, inputs = std::move(inputs)](size_t first, size_t length, int tag) {
      const auto offset = [&](size_t r) { return std::min(first, counts[r]) * combination.width; };
      std::vector<const std::byte*> from;
      for (size_t r = 0; r < ranks(); ++r) from.push_back(bytes(inputs[r]) + offset(r));
      return mpi::reduce_scatter(channel_, tag, std::move(from), bytes(output) + offset(rank()),
                                 parts(counts, first, length), combination);
    });
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
    auto agreed = call([=, this](int tag) { return agree_on_alltoall(channel_, tag, input_counts, output_counts); });
    return std::make_unique<Then>(std::move(agreed), exchanged(std::move(from), std::move(input_counts), std::move(to),
                                                               std::move(output_counts)));
  }

  RequestPtr with_agreed_counts(const char* name, const std::vector<size_t>& counts,
                                const std::function<RequestPtr()>& next) override {
    auto agreed = call([=, this](int tag) { return agree(channel_, tag, name, counts); });
    return std::make_unique<Then>(std::move(agreed), next());
  }

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    mpi_traffic.count(bytes);
    Transfers transfers(channel_, channel_.tag_of_messages());
    transfers.send(destination, data, bytes);
    return std::make_unique<Message>(std::move(transfers));
  }

  RequestPtr recv(void* data, size_t bytes, int source) override {
    mpi_traffic.count(bytes);
    Transfers transfers(channel_, channel_.tag_of_messages());
    transfers.receive(source, data, bytes);
    return std::make_unique<Message>(std::move(transfers));
  }

 private:
  size_t rank() const { return static_cast<size_t>(channel_.rank()); }
  size_t ranks() const { return static_cast<size_t>(channel_.ranks()); }
  std::vector<size_t> ones() const { return std::vector<size_t>(ranks(), 1); }

  RequestPtr call(std::function<Coroutine(int tag)> start) {
    return std::make_unique<Pieces>(channel_, 1, [start = std::move(start)](size_t, int tag) { return start(tag); });
  }

  // Calls start(first, length, tag) for each piece of no more than `most` elements.
  template <typename Start>
  RequestPtr in_pieces(size_t count, size_t most, Start start) {
    return std::make_unique<Pieces>(channel_, (count + most - 1) / most, [=](size_t piece, int tag) {
      return start(piece * most, part(count, piece * most, most), tag);
    });
  }

  RequestPtr exchanged(std::vector<const std::byte*> inputs, std::vector<size_t> input_bytes,
                       std::vector<std::byte*> outputs, std::vector<size_t> output_bytes) {
    return call([=, this](int tag) { return exchange(channel_, tag, inputs, input_bytes, outputs, output_bytes); });
  }

  RequestPtr reduced(const void* input, void* output, size_t count, DataType type, Reduction reduction, int root) {
    const Combination combination{kernels::reduction(type, reduction), size_of(type)};
    const size_t total = count * combination.width;
    mpi_traffic.count(total);
    const bool at_once = total * (ranks() - 1) <= kOneStepBytes;
    return in_pieces(count, kPieceBytes / combination.width, [=, this](size_t first, size_t length, int tag) {
      const auto* from = bytes(input) + first * combination.width;
      auto* to = output == nullptr ? nullptr : bytes(output) + first * combination.width;
      return (at_once ? reduce_at_once : mpi::reduce)(channel_, tag, from, to, length, combination, root);
    });
  }

  RequestPtr compressed(float* data, float* residual, size_t count, Reduction reduction) {
    mpi_traffic.count(count * sizeof(float));
    const bool average = reduction == Reduction::kAverage;
    return in_pieces(count, kPieceBytes / sizeof(float), [=, this](size_t first, size_t length, int tag) {
      auto* errors = residual == nullptr ? nullptr : residual + first;
      return compressed_allreduce(channel_, tag, data + first, errors, length, wire_, average);
    });
  }

  const Wire wire_;
  Channel channel_;
  std::unique_ptr<Hierarchy> hierarchy_;  // may be null
};

}  // namespace

TransportPtr create(const Group& group, std::unique_ptr<Hierarchy> hierarchy) {
  return std::make_unique<Mpi>(group, std::move(hierarchy));
}

}  // namespace cpudist::mpi
