// Counts of what this process handed to each transport.
#pragma once

#include <atomic>

#include "transport.hpp"

namespace cpudist {

struct Traffic {
  std::string transport;
  uint64_t calls;
  uint64_t bytes;  // of the larger buffer of each call
};

// Returns the counts since the process started, over all groups, of the transports that were used.
std::vector<Traffic> traffic();

struct TrafficCounter {
  const char* transport;
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};

  void count(size_t bytes_of_call) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(bytes_of_call, std::memory_order_relaxed);
  }
};

// Bytes of the allreduces that crossed the network in another format: of their values, and in that format.
struct ConversionCounter {
  std::atomic<uint64_t> before{0};
  std::atomic<uint64_t> after{0};

  void count(uint64_t bytes_before, uint64_t bytes_after) {
    before.fetch_add(bytes_before, std::memory_order_relaxed);
    after.fetch_add(bytes_after, std::memory_order_relaxed);
  }
};

extern ConversionCounter converted;
extern TrafficCounter oneccl_traffic;
extern TrafficCounter shared_memory_traffic;
extern TrafficCounter hierarchy_traffic;

// Passes each call on to one transport and counts it.
class CountedTransport : public Transport {
 public:
  CountedTransport(TransportPtr transport, TrafficCounter& counter)
      : transport_(std::move(transport)), counter_(counter) {}

  const char* name() const override { return transport_->name(); }
  RequestPtr barrier() override;
  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override;
  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override;
  RequestPtr allreduce_with_residual(float* data, float* residual, size_t count, Reduction reduction) override;
  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override;
  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override;
  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override;
  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override;
  RequestPtr with_agreed_counts(const char* name, const std::vector<size_t>& counts,
                                const std::function<RequestPtr()>& call) override;
  RequestPtr send(const void* data, size_t bytes, int destination) override;
  RequestPtr recv(void* data, size_t bytes, int source) override;

 private:
  TransportPtr transport_;
  TrafficCounter& counter_;
};

}  // namespace cpudist
