#include "transport.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "../traffic.hpp"
#include "collectives.hpp"
#include "divided.hpp"
#include "messages.hpp"

namespace cpudist::shared_memory {

namespace {

// Where a part begins in a buffer, which may be null on a rank that receives nothing.
template <typename Pointer>
auto at(Pointer data, Part part, size_t count, size_t width) {
  return data == nullptr ? nullptr : bytes(data) + part.begin(count, width) * width;
}

// Where this part begins in each rank's buffer of counts[r] elements.
template <typename To, typename From>
std::vector<To> all_at(const std::vector<From>& pointers, Part part, const std::vector<size_t>& counts, size_t width) {
  std::vector<To> result;
  result.reserve(pointers.size());
  for (size_t rank = 0; rank < pointers.size(); ++rank) {
    result.push_back(at(pointers[rank], part, counts[rank], width));
  }
  return result;
}

// The number of each rank's elements in this part, times `unit`.
std::vector<size_t> counts_of(std::vector<size_t> counts, Part part, size_t width, size_t unit) {
  for (size_t& count : counts) count = part.count(count, width) * unit;
  return counts;
}

class SharedMemory final : public Transport {
 public:
  SharedMemory(Segment segment, const Layout& layout, int rank, int ranks)
      : segment_(std::move(segment)), channels_(make_channels(segment_, layout, rank, ranks)), messages_(channel()) {}

  RequestPtr barrier() override {
    return collective(Signature(Operation::kBarrier), {}, 0,
                      [](Channel& channel, Part) { return shared_memory::barrier(channel); });
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    const size_t width = size_of(type);
    return collective(Signature(Operation::kBroadcast, count, type, root), {}, count * width,
                      [=](Channel& channel, Part part) {
                        return shared_memory::broadcast(channel, at(data, part, count, width),
                                                        part.count(count, width) * width, root);
                      });
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    return reduce_to(kAllRanks, Signature(Operation::kAllreduce, count, type, static_cast<int>(reduction)), input,
                     output, count, Combination(type, reduction));
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return reduce_to(root, Signature(Operation::kReduce, count, type, static_cast<int>(reduction) << 8 | root), input,
                     output, count, Combination(type, reduction));
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    return allgather_as(Operation::kAllgather, input, std::move(outputs), std::move(counts), type);
  }

  RequestPtr leave(const void* input, std::vector<void*> outputs, std::vector<size_t> counts) override {
    return allgather_as(Operation::kLeave, input, std::move(outputs), std::move(counts), DataType::kUint8);
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const size_t own = counts[rank()];
    const size_t width = size_of(type);
    const Signature signature(Operation::kReduceScatter, own, type, static_cast<int>(reduction));
    return collective(signature.with_hash_of(counts), counts, sum(counts) * width, [&](Channel& channel, Part part) {
      return shared_memory::reduce_scatter(channel, all_at<const std::byte*>(inputs, part, counts, width),
                                           at(output, part, own, width), counts_of(counts, part, width, 1),
                                           Combination(type, reduction));
    });
  }

  // Not divided into parts, because each rank has only its own counts.
  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    const size_t width = size_of(type);
    shared_memory_traffic.bytes += std::max(sum(input_counts), sum(output_counts)) * width;
    return collective(Signature(Operation::kAlltoall), {}, 0, [&](Channel& channel, Part whole) {
      return shared_memory::alltoall(channel, all_at<const std::byte*>(inputs, whole, input_counts, width),
                                     counts_of(input_counts, whole, width, width),
                                     all_at<std::byte*>(outputs, whole, output_counts, width),
                                     counts_of(output_counts, whole, width, width));
    });
  }

  RequestPtr send(const void* data, size_t count, int destination) override {
    shared_memory_traffic.count(count);
    return std::make_unique<MessageRequest>(channel(), messages_.send(bytes(data), count, destination));
  }

  RequestPtr recv(void* data, size_t count, int source) override {
    shared_memory_traffic.count(count);
    return std::make_unique<MessageRequest>(channel(), messages_.receive(bytes(data), count, source));
  }

 private:
  static std::vector<Channel> make_channels(Segment& segment, const Layout& layout, int rank, int ranks) {
    std::vector<Channel> result;
    for (int channel = 0; channel < layout.channels; ++channel) {
      result.emplace_back(segment, layout, static_cast<size_t>(channel), rank, ranks);
    }
    return result;
  }

  Channel& channel() { return channels_.front(); }
  size_t rank() { return static_cast<size_t>(channel().rank()); }

  RequestPtr allgather_as(Operation operation, const void* input, std::vector<void*> outputs,
                          std::vector<size_t> counts, DataType type) {
    const size_t own = counts[rank()];
    const size_t width = size_of(type);
    const Signature signature(operation, own, type);
    return collective(signature.with_hash_of(counts), counts, sum(counts) * width, [&](Channel& channel, Part part) {
      return shared_memory::allgather(channel, at(input, part, own, width),
                                      all_at<std::byte*>(outputs, part, counts, width),
                                      counts_of(counts, part, width, width));
    });
  }

  RequestPtr reduce_to(int receiver, Signature signature, const void* input, void* output, size_t count,
                       Combination combination) {
    const size_t width = combination.width;
    return collective(signature, {}, count * width, [=](Channel& channel, Part part) {
      return shared_memory::allreduce(channel, at(input, part, count, width), at(output, part, count, width),
                                      part.count(count, width), combination, receiver);
    });
  }

  // `counts`: the count in each rank's signature if ranks have different counts. `bytes`: of the whole call, the same
  // on all ranks. start(channel, part) begins a part of the call on a channel.
  template <typename Start>
  RequestPtr collective(Signature signature, const std::vector<size_t>& counts, size_t bytes, Start start) {
    shared_memory_traffic.count(bytes);
    const size_t parts = parts_of(bytes, channels_.size());
    const auto begin = [&](size_t number) {
      auto& channel = channels_[number];
      return std::make_unique<CollectiveRequest>(channel, signature, counts, start(channel, Part{number, parts}));
    };
    if (parts == 1) return begin(0);
    Divided::Requests requests;
    for (size_t number = 0; number < parts; ++number) requests.push_back(begin(number));
    return std::make_unique<Divided>(std::move(requests), bytes);
  }

  Segment segment_;
  std::vector<Channel> channels_;
  Messages messages_;
};

// The message of the exception that `attempt` throws, or an empty text.
template <typename Attempt>
std::string error_of(Attempt attempt) {
  try {
    attempt();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

// All ranks decide together. Round one: every rank publishes how many channels it has threads for, and rank 0 the
// address of the memory. Round two: every rank publishes whether it could open the memory and allocate its region. A
// rank that has failed takes part in both rounds and reports its failure.
TransportPtr create(const Group& group, std::string& why) {
  if (group.size > kMostRanks) {
    why = std::to_string(group.size) + " ranks on one machine, more than " + std::to_string(kMostRanks);
    return nullptr;
  }
  std::optional<Segment> segment;
  std::string address;
  std::string failure;
  if (group.rank == 0) {
    failure = error_of([&] {
      segment.emplace(Segment::create(kPageBytes + Layout::kMostBytes));
      address = segment->address();
    });
  }
  int channels = kMostChannels;
  const auto places = all_gather(group, "shared_memory/address", std::to_string(parallel::lent()) + ' ' + address);
  for (const auto& place : places) channels = std::min(channels, std::stoi(place));
  address = places.front().substr(places.front().find(' ') + 1);
  const Layout layout(group.size, channels);

  if (failure.empty()) {
    failure = error_of([&] {
      if (!segment) segment.emplace(Segment::open(address));
      segment->allocate(layout.region(group.rank), layout.region_bytes);
      segment->lock(layout.region(group.rank));
    });
  }
  const auto failures = all_gather(group, "shared_memory/failure", failure);
  for (int rank = 0; rank < group.size; ++rank) {
    if (failures[rank].empty()) continue;
    why = "rank " + std::to_string(rank) + ": " + failures[rank];
    return nullptr;
  }
  segment->prefault(layout.total_bytes);
  return std::make_unique<SharedMemory>(std::move(*segment), layout, group.rank, group.size);
}

}  // namespace cpudist::shared_memory
