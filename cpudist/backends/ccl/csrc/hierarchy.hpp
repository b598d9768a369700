// Allreduces of ranks on several machines: shared memory inside each machine, and oneCCL or MPI across them.
#pragma once

#include <deque>

#include "transport.hpp"

namespace cpudist {

// The place of a rank in its group. The ranks of a machine are numbered by their order in the group.
struct Placement {
  // nodes[r]: a number that identifies the machine of rank r.
  Placement(const std::vector<int>& nodes, int rank);

  int node;  // this rank's machine, counted from 0
  int node_count;
  int local_rank;  // this rank's number on its machine
  int local_size;  // ranks on its machine
  bool even;       // every machine has equally many ranks
};

// Reduces inside each machine before it sends across machines: the ranks of a machine reduce_scatter, each allreduces
// its share with the ranks of the same local number on the other machines, then they allgather.
class Hierarchy {
 public:
  // `inside` connects the ranks of this machine, `across` the ranks of the same local number on all machines. All
  // machines have equally many ranks.
  Hierarchy(TransportPtr inside, TransportPtr across, const Placement& placement);

  // Whether the hierarchy supports a reduction: not averages of integers, which would be rounded twice.
  static bool takes(DataType type, Reduction reduction) {
    return !is_integer(type) || reduction != Reduction::kAverage;
  }

  // The arguments are those of a transport. `residual` may be null, and is used for averages of float32 only.
  RequestPtr allreduce(const void* input, void* output, float* residual, size_t count, DataType type,
                       Reduction reduction);

 private:
  class Allreduce;

  TransportPtr inside_;
  TransportPtr across_;
  int local_rank_;
  size_t local_size_;
  std::deque<const Request*> order_;  // requests that still have calls to make, oldest first
};

// A transport between machines. Its allreduces go through the hierarchy if there is one that supports them, otherwise
// straight across the network, in the wire's format where that pays.
class AcrossMachines : public Transport {
 public:
  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) final;
  RequestPtr allreduce_with_residual(float* data, float* residual, size_t count) final;

 protected:
  // `hierarchy` may be null.
  AcrossMachines(Wire wire, std::unique_ptr<Hierarchy> hierarchy) : wire_(wire), hierarchy_(std::move(hierarchy)) {}

  virtual RequestPtr exact(const void* input, void* output, size_t count, DataType type, Reduction reduction) = 0;
  // A sum or average of float32, in place, in the format of `wire_`; `residual` may be null.
  virtual RequestPtr compressed(float* data, float* residual, size_t count, bool average) = 0;

  const Wire wire_;

 private:
  std::unique_ptr<Hierarchy> hierarchy_;
};

}  // namespace cpudist
