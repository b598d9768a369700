#include "choice.hpp"

#include <numeric>

#include "oneccl/transport.hpp"

namespace cpudist {

namespace {

struct Counter {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};

  void count(size_t bytes_of_call) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(bytes_of_call, std::memory_order_relaxed);
  }
};

Counter oneccl_counter;

size_t sum(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

// Hands each call to the transport that is best for it, and counts. The choice depends only on what all ranks see
// alike: the operation, the element type, the number of bytes, the group.
class Choice final : public Transport {
 public:
  explicit Choice(const Group& group) : oneccl_(oneccl::create(group)) {}

  const char* name() const override { return "choice"; }

  RequestPtr barrier() override { return choose(0).barrier(); }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    return choose(count * size_of(type)).broadcast(data, count, type, root);
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    return choose(count * size_of(type)).allreduce(input, output, count, type, reduction);
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return choose(count * size_of(type)).reduce(input, output, count, type, reduction, root);
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    auto& transport = choose(sum(counts) * size_of(type));
    return transport.allgather(input, std::move(outputs), std::move(counts), type);
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    auto& transport = choose(sum(counts) * size_of(type));
    return transport.reduce_scatter(std::move(inputs), output, std::move(counts), type, reduction);
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    auto& transport = choose(std::max(sum(input_counts), sum(output_counts)) * size_of(type));
    return transport.alltoall(std::move(inputs), std::move(input_counts), std::move(outputs), std::move(output_counts),
                              type);
  }

  RequestPtr send(const void* data, size_t bytes, int destination) override {
    return choose(bytes).send(data, bytes, destination);
  }

  RequestPtr recv(void* data, size_t bytes, int source) override { return choose(bytes).recv(data, bytes, source); }

 private:
  Transport& choose(size_t bytes) {
    oneccl_counter.count(bytes);
    return *oneccl_;
  }

  TransportPtr oneccl_;
};

}  // namespace

std::vector<Traffic> traffic() {
  std::vector<Traffic> used;
  if (oneccl_counter.calls > 0) used.push_back({"oneccl", oneccl_counter.calls, oneccl_counter.bytes});
  return used;
}

TransportPtr make_transport(const Group& group) { return std::make_unique<Choice>(group); }

}  // namespace cpudist
