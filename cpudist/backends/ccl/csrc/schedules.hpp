// The schedule of each collective. The process group has checked sizes and types; tensors may be non-contiguous or
// empty. When one of these functions throws, nothing has been sent.
#pragma once

#include "datatypes.hpp"
#include "schedule.hpp"

namespace cpudist::schedules {

using Tensors = std::vector<at::Tensor>;
using c10d::ReduceOp;

void barrier(Schedule& schedule);
void broadcast(Schedule& schedule, const at::Tensor& tensor, int rank, int root);
void allreduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op);
// The average of a contiguous float32 tensor; see Transport::allreduce_with_residual. `residual` has its size and type.
void allreduce_with_residual(Schedule& schedule, const at::Tensor& tensor, const at::Tensor& residual);
void reduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op, int rank, int root);

// An allreduce of each tensor. Adjacent small tensors of the same type are packed into one message.
void allreduce_all(Schedule& schedule, const Tensors& tensors, const ReduceOp& op);

// Allocates int64[size][2 + sparse dimensions + dense dimensions] and fills each row with this rank's number of
// elements, its number of sparse dimensions, and its shape. An all_gather then replaces row r by rank r's row.
at::Tensor sparse_layout(const at::Tensor& input, int size);

// `tensor` receives the sum of every rank's `input`, coalesced. Throws ValueError where shapes differ.
void sum_sparse(Schedule& schedule, const at::Tensor& tensor, const at::Tensor& input, const at::Tensor& layout,
                int rank);

// kAgreed: all ranks know the same sizes. kGiven: each rank has all sizes from its own caller, so they may differ.
enum class Sizes { kAgreed, kGiven };

// outputs[r] receives rank r's input; sizes may differ from rank to rank.
void allgather(Schedule& schedule, const Tensors& outputs, const at::Tensor& input, int rank,
               Sizes sizes = Sizes::kAgreed);

// output receives the reduction of every rank's inputs[rank]; sizes may differ from rank to rank.
void reduce_scatter(Schedule& schedule, const at::Tensor& output, const Tensors& inputs, const ReduceOp& op, int rank,
                    Sizes sizes = Sizes::kAgreed);

// inputs[r] goes to rank r and outputs[r] comes from it; one type, any sizes. Gather and scatter pass empty tensors.
void alltoall(Schedule& schedule, const Tensors& outputs, const Tensors& inputs);

}  // namespace cpudist::schedules
