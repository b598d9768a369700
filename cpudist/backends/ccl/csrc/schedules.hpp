// What each collective asks of a transport. Sizes and types have been checked by the process group; tensors may be
// non-contiguous or empty. Nothing has been sent when one of these throws.
#pragma once

#include "datatypes.hpp"
#include "schedule.hpp"

namespace cpudist::schedules {

using Tensors = std::vector<at::Tensor>;
using c10d::ReduceOp;

void barrier(Schedule& schedule);
void broadcast(Schedule& schedule, const at::Tensor& tensor, int rank, int root);
void allreduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op);
void reduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op, int rank, int root);

// outputs[r] receives rank r's input; sizes may differ from rank to rank.
void allgather(Schedule& schedule, const Tensors& outputs, const at::Tensor& input, int rank);

// output receives the reduction of every rank's inputs[rank]; sizes may differ from rank to rank.
void reduce_scatter(Schedule& schedule, const at::Tensor& output, const Tensors& inputs, const ReduceOp& op, int rank);

// inputs[r] goes to rank r and outputs[r] comes from it; one type, any sizes. With empty tensors gather and scatter.
void alltoall(Schedule& schedule, const Tensors& outputs, const Tensors& inputs);

}  // namespace cpudist::schedules
