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

// Across machines: an allreduce goes through the hierarchy, everything else through oneCCL. So does an average of
// integers: it is rounded once, where the hierarchy would round on each level.
class AcrossNodes final : public Counted {
 public:
  AcrossNodes(TransportPtr oneccl, std::unique_ptr<Hierarchy> hierarchy)
      : Counted(std::move(oneccl), oneccl_counter), hierarchy_(std::move(hierarchy)) {}

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    if (reduction == Reduction::kAverage && is_integer(type)) {
      return Counted::allreduce(input, output, count, type, reduction);
    }
    hierarchy_counter.count(count * size_of(type));
    return hierarchy_->allreduce(input, output, count, type, reduction);
  }

 private:
  std::unique_ptr<Hierarchy> hierarchy_;
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

// Null, with a warning, where any machine's ranks cannot share memory.
std::unique_ptr<Hierarchy> make_hierarchy(const Group& group, const Placement& place, std::string& warning) {
  Part inside_store(group.store, "inside/" + std::to_string(place.node));
  const std::vector<int> here(place.local_size, place.node);
  std::string why;
  auto inside = shared_memory::create({place.local_rank, place.local_size, here, group.timeout, &inside_store}, why);
  const auto reasons = exchange(group, "inside", why);
  const auto reason = std::find_if(reasons.begin(), reasons.end(), [](const auto& text) { return !text.empty(); });
  if (reason != reasons.end()) {
    warning = *reason;
    return nullptr;
  }
  Part across_store(group.store, "across/" + std::to_string(place.local_rank));
  std::vector<int> everywhere(place.node_count);
  std::iota(everywhere.begin(), everywhere.end(), 0);
  auto across = oneccl::create({place.node, place.node_count, everywhere, group.timeout, &across_store});
  return std::make_unique<Hierarchy>(std::move(inside), std::move(across), place);
}

}  // namespace

std::vector<Traffic> traffic() {
  std::vector<Traffic> used;
  for (const auto* counter : {&oneccl_counter, &shared_memory_counter, &hierarchy_counter}) {
    if (counter->calls > 0) used.push_back({counter->transport, counter->calls, counter->bytes});
  }
  return used;
}

// The choice depends only on what all ranks see alike: the operation, and where the group's ranks are.
TransportPtr make_transport(const Group& group, bool shared_memory, std::string& warning) {
  const Placement place(group);
  const bool one_rank_each = place.node_count > 1 && place.even && place.local_size == 1;
  if (!shared_memory || one_rank_each) return make_oneccl(group);
  if (place.node_count == 1) {
    auto transport = shared_memory::create(group, warning);
    return transport ? std::make_unique<Counted>(std::move(transport), shared_memory_counter) : make_oneccl(group);
  }
  auto oneccl = oneccl::create(group);
  auto hierarchy = place.even ? make_hierarchy(group, place, warning) : nullptr;
  if (!hierarchy) return std::make_unique<Counted>(std::move(oneccl), oneccl_counter);
  return std::make_unique<AcrossNodes>(std::move(oneccl), std::move(hierarchy));
}

}  // namespace cpudist
