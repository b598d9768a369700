#include "traffic.hpp"

#include <algorithm>
#include <numeric>

namespace cpudist {

ConversionCounter converted;
TrafficCounter oneccl_traffic{"oneccl"};
TrafficCounter shared_memory_traffic{"shared_memory"};
TrafficCounter hierarchy_traffic{"hierarchy"};

std::vector<Traffic> traffic() {
  std::vector<Traffic> used;
  for (const auto* counter : {&oneccl_traffic, &shared_memory_traffic, &hierarchy_traffic}) {
    if (counter->calls > 0) used.push_back({counter->transport, counter->calls, counter->bytes});
  }
  return used;
}

static size_t sum(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

RequestPtr CountedTransport::barrier() {
  counter_.count(0);
  return transport_->barrier();
}

RequestPtr CountedTransport::broadcast(void* data, size_t count, DataType type, int root) {
  counter_.count(count * size_of(type));
  return transport_->broadcast(data, count, type, root);
}

RequestPtr CountedTransport::allreduce(const void* input, void* output, size_t count, DataType type,
                                       Reduction reduction) {
  counter_.count(count * size_of(type));
  return transport_->allreduce(input, output, count, type, reduction);
}

RequestPtr CountedTransport::allreduce_with_residual(float* data, float* residual, size_t count, Reduction reduction) {
  counter_.count(count * sizeof(float));
  return transport_->allreduce_with_residual(data, residual, count, reduction);
}

RequestPtr CountedTransport::reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                                    int root) {
  counter_.count(count * size_of(type));
  return transport_->reduce(input, output, count, type, reduction, root);
}

RequestPtr CountedTransport::allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                                       DataType type) {
  counter_.count(sum(counts) * size_of(type));
  return transport_->allgather(input, std::move(outputs), std::move(counts), type);
}

RequestPtr CountedTransport::reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts,
                                            DataType type, Reduction reduction) {
  counter_.count(sum(counts) * size_of(type));
  return transport_->reduce_scatter(std::move(inputs), output, std::move(counts), type, reduction);
}

RequestPtr CountedTransport::alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts,
                                      std::vector<void*> outputs, std::vector<size_t> output_counts, DataType type) {
  counter_.count(std::max(sum(input_counts), sum(output_counts)) * size_of(type));
  return transport_->alltoall(std::move(inputs), std::move(input_counts), std::move(outputs), std::move(output_counts),
                              type);
}

RequestPtr CountedTransport::with_agreed_counts(const char* name, const std::vector<size_t>& counts,
                                                const std::function<RequestPtr()>& call) {
  return transport_->with_agreed_counts(name, counts, call);
}

RequestPtr CountedTransport::send(const void* data, size_t bytes, int destination) {
  counter_.count(bytes);
  return transport_->send(data, bytes, destination);
}

RequestPtr CountedTransport::recv(void* data, size_t bytes, int source) {
  counter_.count(bytes);
  return transport_->recv(data, bytes, source);
}

}  // namespace cpudist
