// Two transports as one: inside each node one, across the nodes another. A node is a machine, or a NUMA node of one.
#pragma once

#include <deque>

#include "transport.hpp"

namespace cpudist {

// Where a rank is among those of its group. Ranks of one node are numbered in it by their order in the group.
struct Placement {
  Placement(const std::vector<int>& nodes, int rank);  // nodes[r]: the node of rank r, by any number

  int node;  // this rank's node, counted from 0
  int node_count;
  int local_rank;  // this rank's number in its node
  int local_size;  // ranks in its node
  bool even;       // every node has as many ranks as any other
};

// An allreduce that sends across nodes only what has been added up inside each: the ranks of a node reduce_scatter,
// each sums its share with those of the same number in the other nodes, then they allgather.
class Hierarchy {
 public:
  // `inside` connects the ranks of this node, `across` those of the same number in every node. Nodes have equally many
  // ranks.
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
