#include "choice.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "hierarchy.hpp"
#include "oneccl/transport.hpp"
#include "shared_memory/transport.hpp"

namespace cpudist {

namespace {

struct Counter {
  const char* transport;
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};

  void count(size_t bytes_of_call) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(bytes_of_call, std::memory_order_relaxed);
  }
};

Counter oneccl_counter{"oneccl"};
Counter shared_memory_counter{"shared_memory"};
Counter hierarchy_counter{"hierarchy"};
Counter numa_hierarchy_counter{"numa_hierarchy"};

// Hands each call to one transport, and counts.
class Counted : public Transport {
 public:
  Counted(TransportPtr transport, Counter& counter) : transport_(std::move(transport)), counter_(counter) {}

  const char* name() const override { return transport_->name(); }

  RequestPtr barrier() override {
    counter_.count(0);
    return transport_->barrier();
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    counter_.count(count * size_of(type));
    return transport_->broadcast(data, count, type, root);
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    counter_.count(count * size_of(type));
    return transport_->allreduce(input, output, count, type, reduction);
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    counter_.count(count * size_of(type));
    return transport_->reduce(input, output, count, type, reduction, root);
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    counter_.count(sum(counts) * size_of(type));
    return transport_->allgather(input, std::move(outputs), std::move(counts), type);
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    counter_.count(sum(counts) * size_of(type));
    return transport_->reduce_scatter(std::move(inputs), output, std::move(counts), type, reduction);
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    counter_.count(std::max(sum(input_counts), sum(output_counts)) * size_of(type));
    return transport_->alltoall(std::move(inputs), std::move(input_counts), std::move(outputs),
                                std::move(output_counts), type);
  }

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    counter_.count(bytes);
    return transport_->send(data, bytes, destination);
  }

  RequestPtr recv(void* data, size_t bytes, int source) override {
    counter_.count(bytes);
    return transport_->recv(data, bytes, source);
  }

 private:
  static size_t sum(const std::vector<size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), size_t{0});
  }

  TransportPtr transport_;
  Counter& counter_;
};

// Which allreduces a hierarchy takes: what it takes is rounded on each level.
using Takes = bool (*)(size_t bytes, DataType type, Reduction reduction);

// An average of integers is rounded towards zero once, wherever the ranks are.
bool across_machines(size_t, DataType type, Reduction reduction) {
  return !(is_integer(type) && reduction == Reduction::kAverage);
}

// In one level a rank reads about the whole tensor from other NUMA nodes, in two 1 / L of that with L ranks in each
// (docs/design.md counts it). But there are more steps, and what a small message takes is steps. Neither the gain nor
// the bound could be measured where there is but one node.
//
// float16 and bfloat16 stay in one level: inside a machine they are added in float32 and rounded once. To keep their
// sums in float32 between the levels would double what goes across, and with two ranks in a node leave nothing to gain.
bool across_numa_nodes(size_t bytes, DataType type, Reduction reduction) {
  constexpr size_t kLargeEnough = size_t{1} << 20;
  const bool half = type == DataType::kFloat16 || type == DataType::kBFloat16;
  return bytes >= kLargeEnough && !half && across_machines(bytes, type, reduction);
}

// Where the group's ranks are in several nodes: what the hierarchy takes goes through it, everything else does not.
class TwoLevels final : public Counted {
 public:
  TwoLevels(TransportPtr flat, Counter& flat_counter, std::unique_ptr<Hierarchy> hierarchy, Counter& counter,
            Takes takes)
      : Counted(std::move(flat), flat_counter), hierarchy_(std::move(hierarchy)), counter_(counter), takes_(takes) {}

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    const size_t bytes = count * size_of(type);
    if (!takes_(bytes, type, reduction)) return Counted::allreduce(input, output, count, type, reduction);
    counter_.count(bytes);
    return hierarchy_->allreduce(input, output, count, type, reduction);
  }

 private:
  std::unique_ptr<Hierarchy> hierarchy_;
  Counter& counter_;
  Takes takes_;
};

// A part of a group's store.
class Part final : public KeyValueStore {
 public:
  Part(KeyValueStore* store, std::string prefix) : store_(store), prefix_(std::move(prefix) + "/") {}
  void set(const std::string& key, const std::string& value) override { store_->set(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) override { return store_->get(prefix_ + key); }

 private:
  KeyValueStore* store_;
  std::string prefix_;
};

TransportPtr make_oneccl(const Group& group) {
  return std::make_unique<Counted>(oneccl::create(group), oneccl_counter);
}

// The group falls into parts, which share memory each for itself; this rank is number `rank` of `size` in `part`.
// Null, and `why` says why not, where any of the parts cannot.
TransportPtr share_memory(const Group& group, const char* level, int part, int rank, int size, std::string& why) {
  Part store(group.store, std::string(level) + "/" + std::to_string(part));
  std::string own;
  auto transport = shared_memory::create({rank, size, std::vector<int>(size), group.timeout, &store}, own);
  const auto reasons = exchange(group, level, own);
  const auto reason = std::find_if(reasons.begin(), reasons.end(), [](const auto& text) { return !text.empty(); });
  if (reason == reasons.end()) return transport;
  why = *reason;
  return nullptr;
}

TransportPtr share_memory_inside(const Group& group, const Placement& place, std::string& why) {
  return share_memory(group, "inside", place.node, place.local_rank, place.local_size, why);
}

constexpr const char* kNoSharedMemory = "not using shared memory inside a machine: ";

// Where all ranks are on one machine.
TransportPtr make_within_machine(const Group& group, std::string& warning) {
  std::string why;
  auto flat = shared_memory::create(group, why);
  if (!flat) {
    warning = kNoSharedMemory + why;
    return make_oneccl(group);
  }
  const Placement place(group.numa_nodes.empty() ? group.nodes : group.numa_nodes, group.rank);
  if (place.node_count > 1 && place.even && place.local_size > 1) {
    auto inside = share_memory_inside(group, place, why);
    auto across = inside ? share_memory(group, "across", place.local_rank, place.node, place.node_count, why) : nullptr;
    if (across) {
      auto hierarchy = std::make_unique<Hierarchy>(std::move(inside), std::move(across), place);
      return std::make_unique<TwoLevels>(std::move(flat), shared_memory_counter, std::move(hierarchy),
                                         numa_hierarchy_counter, across_numa_nodes);
    }
    warning = "not adding up inside each NUMA node first: " + why;
  }
  return std::make_unique<Counted>(std::move(flat), shared_memory_counter);
}

TransportPtr make_across_machines(const Group& group, const Placement& place, std::string& warning) {
  auto flat = oneccl::create(group);
  std::string why;
  auto inside = place.even ? share_memory_inside(group, place, why) : nullptr;
  if (!inside) {
    if (!why.empty()) warning = kNoSharedMemory + why;
    return std::make_unique<Counted>(std::move(flat), oneccl_counter);
  }
  Part store(group.store, "across/" + std::to_string(place.local_rank));
  std::vector<int> everywhere(place.node_count);
  std::iota(everywhere.begin(), everywhere.end(), 0);
  auto across = oneccl::create({place.node, place.node_count, everywhere, group.timeout, &store});
  auto hierarchy = std::make_unique<Hierarchy>(std::move(inside), std::move(across), place);
  return std::make_unique<TwoLevels>(std::move(flat), oneccl_counter, std::move(hierarchy), hierarchy_counter,
                                     across_machines);
}

}  // namespace

std::vector<Traffic> traffic() {
  std::vector<Traffic> used;
  for (const auto* counter : {&oneccl_counter, &shared_memory_counter, &hierarchy_counter, &numa_hierarchy_counter}) {
    if (counter->calls > 0) used.push_back({counter->transport, counter->calls, counter->bytes});
  }
  return used;
}

// The choice depends only on what all ranks see alike: the call, and where the group's ranks are.
TransportPtr make_transport(const Group& group, bool shared_memory, std::string& warning) {
  const Placement place(group.nodes, group.rank);
  const bool one_rank_each = place.node_count > 1 && place.even && place.local_size == 1;
  if (!shared_memory || one_rank_each) return make_oneccl(group);
  if (place.node_count == 1) return make_within_machine(group, warning);
  return make_across_machines(group, place, warning);
}

}  // namespace cpudist
