// The collectives of the process group: each checks its arguments, fills a schedule and submits it.
#include <ATen/core/grad_mode.h>

#include "process_group.hpp"
#include "schedules.hpp"

namespace cpudist {

using c10d::OpType;

// Returns the tensor list on the root of a gather or scatter, and a list of empty tensors on other ranks.
static Tensors list_of_root(const char* name, const std::vector<Tensors>& lists, int rank, int size,
                            const at::Tensor& own, int64_t root) {
  check_root(name, root, size);
  return rank == root ? only_list(name, lists, rank, size, own) : Tensors(size, at::empty({0}, own.options()));
}

WorkPtr ProcessGroupCcl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Kind kind{"broadcast", OpType::BROADCAST, "ccl:broadcast"};
  const auto& tensor = only(kind.name, tensors);
  check_root(kind.name, options.rootRank, size_);
  Schedule schedule;
  schedules::broadcast(schedule, tensor, rank_, static_cast<int>(options.rootRank));
  return run(kind, std::move(schedule), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Kind kind{"all_reduce", OpType::ALLREDUCE, "ccl:all_reduce"};
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  const auto& tensor = only(kind.name, tensors);
  Schedule schedule;
  schedules::allreduce(schedule, tensor, options.reduceOp);
  return run(kind, std::move(schedule), tensors, tensors, options.timeout, options.asyncOp);
}

// Ranks may have different numbers of elements. They exchange the numbers first, and this function waits for them.
WorkPtr ProcessGroupCcl::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Kind kind{"all_reduce", OpType::ALLREDUCE, "ccl:all_reduce"};
  auto& tensor = tensors.front();
  check_type(tensor.device().is_cpu(), kind.name, " takes CPU tensors, got one on ", tensor.device(), "; call cpu()");
  check_value(options.reduceOp == c10d::ReduceOp::SUM, kind.name, ": a sparse tensor can only be summed; use SUM");
  check_type(tensor.scalar_type() != at::kBool, kind.name,
             ": a sparse tensor of booleans cannot be summed; convert it");
  const at::NoGradGuard no_grad;
  const auto input = tensor.coalesce();
  const auto layout = schedules::sparse_layout(input, size_);
  Schedule exchange;
  schedules::allgather(exchange, layout.unbind(), layout[rank_], rank_);
  run(kind, std::move(exchange), {}, {layout}, options.timeout, /*background=*/false)->wait();
  Schedule schedule;
  schedules::sum_sparse(schedule, tensor, input, layout, rank_);
  return run(kind, std::move(schedule), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allreduce_with_residual(const at::Tensor& tensor, const at::Tensor& residual) {
  const Kind kind{"all_reduce", OpType::ALLREDUCE, "ccl:all_reduce"};
  for (const auto& one : {tensor, residual}) {
    check_tensor(kind.name, one);
    check_type(one.scalar_type() == at::kFloat && one.is_contiguous(), kind.name,
               " with a residual takes contiguous float32 tensors; convert them");
  }
  check_same_size(kind.name, tensor, residual);
  Schedule schedule;
  schedules::allreduce_with_residual(schedule, tensor, residual);
  return run(kind, std::move(schedule), {tensor}, {tensor}, c10d::kUnsetTimeout, /*background=*/true);
}

WorkPtr ProcessGroupCcl::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const Kind kind{"all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, "ccl:all_reduce_coalesced"};
  Schedule schedule;
  for (const auto& tensor : tensors) check_tensor(kind.name, tensor);
  schedules::allreduce_all(schedule, tensors, options.reduceOp);
  return run(kind, std::move(schedule), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Kind kind{"reduce", OpType::REDUCE, "ccl:reduce"};
  const auto& tensor = only(kind.name, tensors);
  check_root(kind.name, options.rootRank, size_);
  Schedule schedule;
  schedules::reduce(schedule, tensor, options.reduceOp, rank_, static_cast<int>(options.rootRank));
  return run(kind, std::move(schedule), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather", OpType::ALLGATHER, "ccl:all_gather"};
  const auto& input = only(kind.name, inputs);
  const auto& list = only_list(kind.name, outputs, rank_, size_, input);
  Schedule schedule;
  schedules::allgather(schedule, list, input, rank_, schedules::Sizes::kGiven);
  return run(kind, std::move(schedule), inputs, list, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_into_tensor", OpType::_ALLGATHER_BASE, "ccl:_all_gather_base"};
  Schedule schedule;
  schedules::allgather(schedule, shares(kind.name, output, input, size_), input, rank_);
  return run(kind, std::move(schedule), {input}, {output}, options.timeout, options.asyncOp);
}

// outputs[r][i] receives rank r's inputs[i].
WorkPtr ProcessGroupCcl::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_coalesced", OpType::ALLGATHER_COALESCED, "ccl:all_gather_coalesced"};
  check_value(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced needs ", size_, " output lists, got ",
              outputs.size(), "; pass one per rank");
  Schedule schedule;
  Tensors all_outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors by_rank;
    for (const auto& list : outputs) {
      check_value(list.size() == inputs.size(), "all_gather_coalesced: an output list has ", list.size(),
                  " tensors for ", inputs.size(), " inputs; pass as many");
      by_rank.push_back(list[i]);
    }
    check_tensor(kind.name, inputs[i]);
    check_list(kind.name, by_rank, size_, inputs[i]);
    check_same_size(kind.name, inputs[i], by_rank[rank_]);
    schedules::allgather(schedule, by_rank, inputs[i], rank_, schedules::Sizes::kGiven);
    all_outputs.insert(all_outputs.end(), by_rank.begin(), by_rank.end());
  }
  return run(kind, std::move(schedule), inputs, std::move(all_outputs), options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_into_tensor_coalesced", OpType::COALESCED, "ccl:all_gather_into_tensor_coalesced"};
  check_pairs(kind.name, outputs, inputs);
  Schedule schedule;
  for (size_t i = 0; i < inputs.size(); ++i) {
    schedules::allgather(schedule, shares(kind.name, outputs[i], inputs[i], size_), inputs[i], rank_);
  }
  return run(kind, std::move(schedule), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const Kind kind{"gather", OpType::GATHER, "ccl:gather"};
  const auto& input = only(kind.name, inputs);
  const auto from_each = list_of_root(kind.name, outputs, rank_, size_, input, options.rootRank);
  Tensors to_each(size_, at::empty({0}, input.options()));
  to_each[options.rootRank] = input;
  Schedule schedule;
  schedules::alltoall(schedule, from_each, to_each);
  return run(kind, std::move(schedule), inputs, from_each, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  std::vector<Tensors> outputs;
  if (rank_ == options.rootRank) outputs.push_back(shares("gather_single", output, input, size_));
  Tensors inputs{input};
  return gather(outputs, inputs, options);
}

WorkPtr ProcessGroupCcl::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const Kind kind{"scatter", OpType::SCATTER, "ccl:scatter"};
  const auto& output = only(kind.name, outputs);
  const auto to_each = list_of_root(kind.name, inputs, rank_, size_, output, options.rootRank);
  Tensors from_each(size_, at::empty({0}, output.options()));
  from_each[options.rootRank] = output;
  Schedule schedule;
  schedules::alltoall(schedule, from_each, to_each);
  return run(kind, std::move(schedule), to_each, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter", OpType::REDUCE_SCATTER, "ccl:reduce_scatter"};
  const auto& output = only(kind.name, outputs);
  const auto& list = only_list(kind.name, inputs, rank_, size_, output);
  Schedule schedule;
  schedules::reduce_scatter(schedule, output, list, options.reduceOp, rank_, schedules::Sizes::kGiven);
  return run(kind, std::move(schedule), list, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, "ccl:_reduce_scatter_base"};
  Schedule schedule;
  schedules::reduce_scatter(schedule, output, shares(kind.name, input, output, size_), options.reduceOp, rank_);
  return run(kind, std::move(schedule), {input}, {output}, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter_tensor_coalesced", OpType::COALESCED, "ccl:reduce_scatter_tensor_coalesced"};
  check_pairs(kind.name, outputs, inputs);
  Schedule schedule;
  for (size_t i = 0; i < inputs.size(); ++i) {
    schedules::reduce_scatter(schedule, outputs[i], shares(kind.name, inputs[i], outputs[i], size_), options.reduceOp,
                              rank_);
  }
  return run(kind, std::move(schedule), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const Kind kind{"all_to_all_single", OpType::ALLTOALL_BASE, "ccl:all_to_all"};
  check_types(kind.name, output, input);
  Schedule schedule;
  schedules::alltoall(schedule, split_rows(output, output_splits, size_), split_rows(input, input_splits, size_));
  return run(kind, std::move(schedule), {input}, {output}, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const Kind kind{"all_to_all", OpType::ALLTOALL, "ccl:all_to_all"};
  check_value(!inputs.empty(), "all_to_all needs a list of ", size_, " tensors, got none; pass one per rank");
  check_list(kind.name, inputs, size_, inputs.front());
  check_list(kind.name, outputs, size_, inputs.front());
  check_same_size(kind.name, inputs[rank_], outputs[rank_]);
  Schedule schedule;
  schedules::alltoall(schedule, outputs, inputs);
  return run(kind, std::move(schedule), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::barrier(const c10d::BarrierOptions& options) {
  Schedule schedule;
  schedules::barrier(schedule);
  const Kind kind{"barrier", OpType::BARRIER, "ccl:barrier"};
  return run(kind, std::move(schedule), {}, {}, options.timeout, options.asyncOp);
}

}  // namespace cpudist
