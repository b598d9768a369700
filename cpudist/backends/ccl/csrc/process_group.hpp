// The c10d backend "ccl": collectives on dense CPU tensors, as schedules of a transport's calls.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "arguments.hpp"
#include "schedule.hpp"

namespace cpudist {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class ProcessGroupCcl final : public c10d::Backend {
 public:
  ProcessGroupCcl(TransportPtr transport, int rank, int size, Milliseconds timeout, GroupState group);

  const std::string getBackendName() const override { return "ccl"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(Milliseconds timeout) { timeout_ = timeout; }  // virtual from torch 2.9 on, like the next one
  c10::intrusive_ptr<Options> getBackendOptions() { return c10::make_intrusive<Options>("ccl", timeout_); }
  c10d::ErrorType getError() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override { return at::empty({size}, options); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Averages one tensor with error feedback: `residual`, of the same size and type, keeps the rounding errors of the
  // wire's format.
  WorkPtr allreduce_with_residual(const at::Tensor& tensor, const at::Tensor& residual);
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  // dist.gather_single; a virtual function from torch 2.14 on
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Begins to shut the group down; all its ranks call this. Engine::drain() completes the shutdown.
  void shutdown() override;
  // Ends the group on this rank alone, without waiting for other ranks, and fails works as Engine::abort() does.
  void abort() override;

 private:
  // The properties that identify a collective, besides its schedule.
  struct Kind {
    const char* name;
    c10d::OpType type;
    const char* profiling_title;
  };

  Call next_call(const char* name, Milliseconds timeout, std::optional<int> peer = std::nullopt);
  WorkPtr run(const Kind& kind, Schedule schedule, Tensors inputs, Tensors outputs, Milliseconds timeout,
              bool background);
  WorkPtr receive(Tensors& tensors, int source, int tag);
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options);

  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<GroupState> group_;
  Milliseconds timeout_;
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace cpudist
