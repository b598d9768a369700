#include "process_group.hpp"

#include <numeric>

#include "engine.hpp"
#include "plans.hpp"

namespace cpudist {

using c10d::OpType;

namespace {

void check_tensor(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu(), "ccl: ", name, " takes CPU tensors, got one on ", tensor.device());
  TORCH_CHECK(tensor.layout() == at::kStrided, "ccl: ", name, " takes dense tensors, got a ", tensor.layout(),
              " one; oneCCL has no sparse collectives");
}

const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "ccl: ", name, " takes one tensor per rank, got ", tensors.size());
  check_tensor(name, tensors.front());
  return tensors.front();
}

// One tensor per rank of the group, all of the type of `like`.
void check_list(const char* name, const Tensors& tensors, size_t size, const at::Tensor& like) {
  TORCH_CHECK(tensors.size() == size, "ccl: ", name, " needs a list of ", size, " tensors, one per rank, got ",
              tensors.size());
  for (const auto& tensor : tensors) {
    check_tensor(name, tensor);
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), "ccl: ", name, " needs tensors of one type, got ",
                tensor.scalar_type(), " and ", like.scalar_type());
  }
}

void check_root(const char* name, int64_t root, int size) {
  TORCH_CHECK(root >= 0 && root < size, "ccl: ", name, ": there is no rank ", root, " in a group of ", size);
}

void check_same_size(const char* name, const at::Tensor& own, const at::Tensor& counterpart) {
  TORCH_CHECK(own.numel() == counterpart.numel(), "ccl: ", name, ": this rank's tensor has ", own.numel(),
              " elements, its place in the list ", counterpart.numel());
}

void check_pairs(const char* name, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK(outputs.size() == inputs.size(), "ccl: ", name, " needs as many outputs as inputs, got ", outputs.size(),
              " and ", inputs.size());
}

// A tensor that holds one equal share per rank, as those shares.
Tensors shares(const char* name, const at::Tensor& whole, const at::Tensor& share, int size) {
  check_tensor(name, whole);
  check_tensor(name, share);
  TORCH_CHECK(whole.scalar_type() == share.scalar_type(), "ccl: ", name, " needs tensors of one type, got ",
              whole.scalar_type(), " and ", share.scalar_type());
  TORCH_CHECK(whole.numel() == share.numel() * size, "ccl: ", name, ": a tensor of ", whole.numel(),
              " elements does not hold ", size, " times ", share.numel());
  TORCH_CHECK(whole.is_contiguous(), "ccl: ", name, " needs a contiguous tensor for all ranks' shares");
  return whole.view({-1}).split_with_sizes(std::vector<int64_t>(size, share.numel()));
}

// The rows that a tensor exchanges with each rank; no split sizes: equal shares.
Tensors split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  check_tensor("all_to_all_single", tensor);
  TORCH_CHECK(tensor.is_contiguous(), "ccl: all_to_all_single needs contiguous tensors");
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "ccl: all_to_all_single: ", rows, " rows do not divide among ", size, " ranks");
    return tensor.split_with_sizes(std::vector<int64_t>(size, rows / size));
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == size, "ccl: all_to_all_single needs ", size, " split sizes, got ",
              splits.size());
  TORCH_CHECK(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
              "ccl: all_to_all_single: the split sizes do not add up to the ", rows, " rows of the tensor");
  return tensor.split_with_sizes(splits);
}

}  // namespace

ProcessGroupCcl::ProcessGroupCcl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 Milliseconds timeout, std::string group, size_t most_under_way)
    : Backend(rank, size),
      communicator_(std::make_shared<Communicator>(store, rank, size, timeout, most_under_way)),
      group_(std::make_shared<const std::string>(std::move(group))),
      timeout_(timeout) {}

Call ProcessGroupCcl::next_call(const char* name, Milliseconds timeout) {
  return {name, ++sequence_, rank_, size_, group_, timeout == c10d::kUnsetTimeout ? timeout_ : timeout};
}

WorkPtr ProcessGroupCcl::run(const Kind& kind, Plan plan, Tensors inputs, Tensors outputs, Milliseconds timeout,
                             bool background) {
  auto collective = c10::make_intrusive<Collective>(next_call(kind.name, timeout), kind.type, kind.profiling_title,
                                                    std::move(inputs), std::move(outputs), communicator_,
                                                    std::move(plan));
  Engine::get().submit(collective, background);
  return collective;
}

WorkPtr ProcessGroupCcl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Kind kind{"broadcast", OpType::BROADCAST, "ccl:broadcast"};
  const auto& tensor = only(kind.name, tensors);
  check_root(kind.name, options.rootRank, size_);
  Plan plan;
  plans::broadcast(plan, tensor, static_cast<int>(options.rootRank));
  return run(kind, std::move(plan), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Kind kind{"all_reduce", OpType::ALLREDUCE, "ccl:all_reduce"};
  const auto& tensor = only(kind.name, tensors);
  Plan plan;
  plans::allreduce(plan, tensor, Reduction(options.reduceOp, tensor.scalar_type()), size_);
  return run(kind, std::move(plan), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const Kind kind{"all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, "ccl:all_reduce_coalesced"};
  Plan plan;
  for (const auto& tensor : tensors) {
    check_tensor(kind.name, tensor);
    plans::allreduce(plan, tensor, Reduction(options.reduceOp, tensor.scalar_type()), size_);
  }
  return run(kind, std::move(plan), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Kind kind{"reduce", OpType::REDUCE, "ccl:reduce"};
  const auto& tensor = only(kind.name, tensors);
  check_root(kind.name, options.rootRank, size_);
  Plan plan;
  plans::reduce(plan, tensor, Reduction(options.reduceOp, tensor.scalar_type()), rank_, size_,
                static_cast<int>(options.rootRank));
  return run(kind, std::move(plan), tensors, tensors, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather", OpType::ALLGATHER, "ccl:all_gather"};
  const auto& input = only(kind.name, inputs);
  TORCH_CHECK(outputs.size() == 1, "ccl: all_gather takes one list of outputs, got ", outputs.size());
  check_list(kind.name, outputs.front(), size_, input);
  check_same_size(kind.name, input, outputs.front()[rank_]);
  Plan plan;
  plans::allgather(plan, outputs.front(), input);
  return run(kind, std::move(plan), inputs, outputs.front(), options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_into_tensor", OpType::_ALLGATHER_BASE, "ccl:_all_gather_base"};
  Plan plan;
  plans::allgather(plan, shares(kind.name, output, input, size_), input);
  return run(kind, std::move(plan), {input}, {output}, options.timeout, options.asyncOp);
}

// outputs[rank][i] receives that rank's inputs[i].
WorkPtr ProcessGroupCcl::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_coalesced", OpType::ALLGATHER_COALESCED, "ccl:all_gather_coalesced"};
  TORCH_CHECK(static_cast<int>(outputs.size()) == size_, "ccl: all_gather_coalesced needs ", size_,
              " output lists, one per rank, got ", outputs.size());
  Plan plan;
  Tensors all_outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors by_rank;
    for (const auto& list : outputs) {
      TORCH_CHECK(list.size() == inputs.size(), "ccl: all_gather_coalesced: an output list has ", list.size(),
                  " tensors for ", inputs.size(), " inputs");
      by_rank.push_back(list[i]);
    }
    check_tensor(kind.name, inputs[i]);
    check_list(kind.name, by_rank, size_, inputs[i]);
    check_same_size(kind.name, inputs[i], by_rank[rank_]);
    plans::allgather(plan, by_rank, inputs[i]);
    all_outputs.insert(all_outputs.end(), by_rank.begin(), by_rank.end());
  }
  return run(kind, std::move(plan), inputs, std::move(all_outputs), options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  const Kind kind{"all_gather_into_tensor_coalesced", OpType::COALESCED, "ccl:all_gather_into_tensor_coalesced"};
  check_pairs(kind.name, outputs, inputs);
  Plan plan;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plans::allgather(plan, shares(kind.name, outputs[i], inputs[i], size_), inputs[i]);
  }
  return run(kind, std::move(plan), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const Kind kind{"gather", OpType::GATHER, "ccl:gather"};
  const auto& input = only(kind.name, inputs);
  check_root(kind.name, options.rootRank, size_);
  const auto nothing = at::empty({0}, input.options());
  Tensors from_each(size_, nothing);
  if (rank_ == options.rootRank) {
    TORCH_CHECK(outputs.size() == 1, "ccl: gather needs one list of outputs on the root, got ", outputs.size());
    check_list(kind.name, outputs.front(), size_, input);
    check_same_size(kind.name, input, outputs.front()[rank_]);
    from_each = outputs.front();
  }
  Tensors to_each(size_, nothing);
  to_each[options.rootRank] = input;
  Plan plan;
  plans::exchange(plan, from_each, to_each);
  return run(kind, std::move(plan), inputs, from_each, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  std::vector<Tensors> outputs;
  if (rank_ == options.rootRank) outputs.push_back(shares("gather_single", output, input, size_));
  Tensors inputs{input};
  return gather(outputs, inputs, options);
}

WorkPtr ProcessGroupCcl::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& options) {
  const Kind kind{"scatter", OpType::SCATTER, "ccl:scatter"};
  const auto& output = only(kind.name, outputs);
  check_root(kind.name, options.rootRank, size_);
  const auto nothing = at::empty({0}, output.options());
  Tensors to_each(size_, nothing);
  if (rank_ == options.rootRank) {
    TORCH_CHECK(inputs.size() == 1, "ccl: scatter needs one list of inputs on the root, got ", inputs.size());
    check_list(kind.name, inputs.front(), size_, output);
    check_same_size(kind.name, output, inputs.front()[rank_]);
    to_each = inputs.front();
  }
  Tensors from_each(size_, nothing);
  from_each[options.rootRank] = output;
  Plan plan;
  plans::exchange(plan, from_each, to_each);
  return run(kind, std::move(plan), to_each, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter", OpType::REDUCE_SCATTER, "ccl:reduce_scatter"};
  const auto& output = only(kind.name, outputs);
  TORCH_CHECK(inputs.size() == 1, "ccl: reduce_scatter takes one list of inputs, got ", inputs.size());
  check_list(kind.name, inputs.front(), size_, output);
  check_same_size(kind.name, output, inputs.front()[rank_]);
  Plan plan;
  plans::reduce_scatter(plan, output, inputs.front(), Reduction(options.reduceOp, output.scalar_type()), rank_);
  return run(kind, std::move(plan), inputs.front(), outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, "ccl:_reduce_scatter_base"};
  Plan plan;
  plans::reduce_scatter(plan, output, shares(kind.name, input, output, size_),
                        Reduction(options.reduceOp, output.scalar_type()), rank_);
  return run(kind, std::move(plan), {input}, {output}, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  const Kind kind{"reduce_scatter_tensor_coalesced", OpType::COALESCED, "ccl:reduce_scatter_tensor_coalesced"};
  check_pairs(kind.name, outputs, inputs);
  Plan plan;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plans::reduce_scatter(plan, outputs[i], shares(kind.name, inputs[i], outputs[i], size_),
                          Reduction(options.reduceOp, outputs[i].scalar_type()), rank_);
  }
  return run(kind, std::move(plan), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const Kind kind{"all_to_all_single", OpType::ALLTOALL_BASE, "ccl:all_to_all"};
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "ccl: all_to_all_single needs tensors of one type, got ",
              output.scalar_type(), " and ", input.scalar_type());
  Plan plan;
  plans::exchange(plan, split_rows(output, output_splits, size_), split_rows(input, input_splits, size_));
  return run(kind, std::move(plan), {input}, {output}, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const Kind kind{"all_to_all", OpType::ALLTOALL, "ccl:all_to_all"};
  TORCH_CHECK(!inputs.empty(), "ccl: all_to_all needs a list of ", size_, " tensors, one per rank, got none");
  check_list(kind.name, inputs, size_, inputs.front());
  check_list(kind.name, outputs, size_, inputs.front());
  check_same_size(kind.name, inputs[rank_], outputs[rank_]);
  Plan plan;
  plans::exchange(plan, outputs, inputs);
  return run(kind, std::move(plan), inputs, outputs, options.timeout, options.asyncOp);
}

WorkPtr ProcessGroupCcl::send(Tensors& tensors, int destination, int tag) {
  const auto& tensor = only("send", tensors);
  check_root("send", destination, size_);
  TORCH_CHECK(destination != rank_, "ccl: send: rank ", rank_, " cannot send to itself");
  auto operation = c10::make_intrusive<SendOperation>(next_call("send", timeout_), communicator_, tensor, destination,
                                                      tag);
  Engine::get().submit(operation, /*background=*/true);
  return operation;
}

WorkPtr ProcessGroupCcl::recv(Tensors& tensors, int source, int tag) {
  check_root("recv", source, size_);
  TORCH_CHECK(source != rank_, "ccl: recv: rank ", rank_, " cannot receive from itself");
  return receive(tensors, source, tag);
}

WorkPtr ProcessGroupCcl::recvAnysource(Tensors& tensors, int tag) { return receive(tensors, kAnySource, tag); }

WorkPtr ProcessGroupCcl::receive(Tensors& tensors, int source, int tag) {
  const auto& tensor = only("recv", tensors);
  auto operation = c10::make_intrusive<ReceiveOperation>(next_call("recv", timeout_), communicator_, tensor, source,
                                                         tag);
  Engine::get().submit(operation, /*background=*/true);
  return operation;
}

WorkPtr ProcessGroupCcl::barrier(const c10d::BarrierOptions& options) {
  Plan plan;
  plan.steps.push_back([](const ccl::communicator& comm) { return ccl::barrier(comm); });
  return run({"barrier", OpType::BARRIER, "ccl:barrier"}, std::move(plan), {}, {}, options.timeout, options.asyncOp);
}

}  // namespace cpudist
