// Two transports as one: inside each machine one, across the machines another.
#pragma once

#include <deque>

#include "transport.hpp"

namespace cpudist {

// Where the ranks of a group are. Ranks of one machine are numbered in it by their order in the group.
struct Placement {
  explicit Placement(const Group& group);

  int node;  // this rank's machine, counted from 0
  int node_count;
  int local_rank;  // this rank's number in its machine
  int local_size;  // ranks in its machine
  bool even;       // every machine has as many ranks as any other
};

// An allreduce that sends over the network only what has been added up inside each machine: the ranks of a machine
// reduce_scatter, each sums its share with those of the same number on the other machines, then they allgather.
class Hierarchy {
 public:
  // `inside` connects the ranks of this machine, `across` those of the same number in every machine. Machines have
  // equally many ranks.
  Hierarchy(TransportPtr inside, TransportPtr across, const Placement& placement);

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction);

 private:
  class Allreduce;

  TransportPtr inside_;
  TransportPtr across_;
  int local_rank_;
  size_t local_size_;
  std::deque<const Request*> order_;  // requests that have calls to make yet, oldest first
};

}  // namespace cpudist
