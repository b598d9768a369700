// What each collective asks of oneCCL. Sizes and types have been checked by the process group; tensors may be
// non-contiguous or empty.
#pragma once

#include "collective.hpp"
#include "datatypes.hpp"

namespace cpudist::plans {

using Tensors = std::vector<at::Tensor>;

void broadcast(Plan& plan, const at::Tensor& tensor, int root);
void allreduce(Plan& plan, const at::Tensor& tensor, const Reduction& reduction, int size);
void reduce(Plan& plan, const at::Tensor& tensor, const Reduction& reduction, int rank, int size, int root);

// outputs[r] receives rank r's input; sizes may differ from rank to rank.
void allgather(Plan& plan, const Tensors& outputs, const at::Tensor& input);

// output receives the reduction of every rank's inputs[rank]; sizes may differ from rank to rank.
void reduce_scatter(Plan& plan, const at::Tensor& output, const Tensors& inputs, const Reduction& reduction, int rank);

// inputs[r] goes to rank r and outputs[r] comes from it; one type, any sizes. All-to-all, and with empty tensors gather
// and scatter: oneCCL has no gather, and its all-to-all takes flat buffers only.
void exchange(Plan& plan, const Tensors& outputs, const Tensors& inputs);

}  // namespace cpudist::plans
