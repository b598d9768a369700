#include "schedules.hpp"

#include <algorithm>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include "errors.hpp"

namespace cpudist::schedules {

namespace {

bool disjoint(const at::Tensor& a, const at::Tensor& b) {
  const auto* first = static_cast<const char*>(a.data_ptr());
  const auto* second = static_cast<const char*>(b.data_ptr());
  return first + a.nbytes() <= second || second + b.nbytes() <= first;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.nbytes() == b.nbytes();
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.clone();
}

// The tensor's values in one piece of memory, which is not written to before the end.
at::Tensor to_read(Schedule& schedule, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto buffer = tensor.contiguous();
  schedule.buffers.push_back(buffer);
  return buffer;
}

enum class Holds { kNothing, kInput };

// Memory in one piece for a result: the tensor's own, or a buffer that is copied to it at the end.
at::Tensor to_write(Schedule& schedule, const at::Tensor& tensor, Holds holds, bool own_memory = true) {
  at::Tensor buffer = tensor;
  if (!tensor.is_contiguous() || !own_memory) {
    check_value(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                "cannot write to an expanded tensor: several of its elements share memory; clone() it first");
    const at::NoGradGuard no_grad;
    buffer = at::empty(tensor.sizes(), tensor.options());
    if (holds == Holds::kInput) buffer.copy_(tensor);
    schedule.finish.push_back([tensor, buffer] { tensor.copy_(buffer); });
  }
  schedule.buffers.push_back(buffer);
  return buffer;
}

// Results for several tensors must not be written over each other.
void check_apart(const Tensors& outputs) {
  Tensors sorted;
  for (const auto& output : outputs) {
    if (output.numel() > 0) sorted.push_back(output);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return a.data_ptr() < b.data_ptr(); });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const auto overlap = at::get_overlap_status(sorted[i - 1], sorted[i]);
    check_value(overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial,
                "two of the output tensors share memory; each needs its own");
  }
}

}  // namespace

void barrier(Schedule& schedule) {
  schedule.calls.push_back([](Transport& transport) { return transport.barrier(); });
}

void broadcast(Schedule& schedule, const at::Tensor& tensor, int rank, int root) {
  const auto buffer = rank == root ? to_read(schedule, tensor) : to_write(schedule, tensor, Holds::kNothing);
  schedule.calls.push_back([data = buffer.data_ptr(), count = carrier_count(buffer), type = carrier(buffer),
                            root](Transport& transport) { return transport.broadcast(data, count, type, root); });
}

void allreduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op) {
  const auto type = arithmetic_type(tensor.scalar_type());
  const auto reduction = cpudist::reduction(op, tensor.scalar_type());
  const auto buffer = to_write(schedule, tensor, Holds::kInput);
  schedule.calls.push_back(
      [data = buffer.data_ptr(), count = static_cast<size_t>(buffer.numel()), type, reduction](Transport& transport) {
        return transport.allreduce(data, data, count, type, reduction);
      });
}

void reduce(Schedule& schedule, const at::Tensor& tensor, const ReduceOp& op, int rank, int root) {
  const auto type = arithmetic_type(tensor.scalar_type());
  const auto reduction = cpudist::reduction(op, tensor.scalar_type());
  const bool receives = rank == root;
  const auto buffer = receives ? to_write(schedule, tensor, Holds::kInput) : to_read(schedule, tensor);
  auto* data = buffer.data_ptr();
  schedule.calls.push_back(
      [data, result = receives ? data : nullptr, count = static_cast<size_t>(buffer.numel()), type, reduction,
       root](Transport& transport) { return transport.reduce(data, result, count, type, reduction, root); });
}

void allgather(Schedule& schedule, const Tensors& outputs, const at::Tensor& input, int rank) {
  check_apart(outputs);
  std::vector<void*> targets;
  std::vector<size_t> counts;
  auto source = to_read(schedule, input);
  bool in_the_way = false;
  for (size_t r = 0; r < outputs.size(); ++r) {
    const auto target = to_write(schedule, outputs[r], Holds::kNothing);
    targets.push_back(target.data_ptr());
    counts.push_back(carrier_count(target));
    const bool in_place = static_cast<int>(r) == rank && same_memory(source, target);
    in_the_way = in_the_way || !(in_place || disjoint(source, target));
  }
  if (in_the_way) source = to_read(schedule, copy_of(source));
  schedule.calls.push_back(
      [from = source.data_ptr(), targets = std::move(targets), counts = std::move(counts),
       type = carrier(source)](Transport& transport) { return transport.allgather(from, targets, counts, type); });
}

void reduce_scatter(Schedule& schedule, const at::Tensor& output, const Tensors& inputs, const ReduceOp& op, int rank) {
  const auto type = arithmetic_type(output.scalar_type());
  const auto reduction = cpudist::reduction(op, output.scalar_type());
  std::vector<const void*> sources;
  std::vector<size_t> counts;
  bool in_the_way = false;
  for (size_t r = 0; r < inputs.size(); ++r) {
    const auto source = to_read(schedule, inputs[r]);
    sources.push_back(source.data_ptr());
    counts.push_back(static_cast<size_t>(source.numel()));
    const bool in_place = static_cast<int>(r) == rank && same_memory(source, output);
    in_the_way = in_the_way || !(in_place || disjoint(source, output));
  }
  const auto target = to_write(schedule, output, Holds::kNothing, /*own_memory=*/!in_the_way);
  schedule.calls.push_back(
      [to = target.data_ptr(), sources = std::move(sources), counts = std::move(counts), type,
       reduction](Transport& transport) { return transport.reduce_scatter(sources, to, counts, type, reduction); });
}

void alltoall(Schedule& schedule, const Tensors& outputs, const Tensors& inputs) {
  check_apart(outputs);
  Tensors written;
  std::vector<void*> targets;
  std::vector<size_t> output_counts;
  for (const auto& output : outputs) {
    written.push_back(to_write(schedule, output, Holds::kNothing));
    targets.push_back(written.back().data_ptr());
    output_counts.push_back(carrier_count(output));
  }
  std::vector<const void*> sources;
  std::vector<size_t> input_counts;
  for (const auto& input : inputs) {
    auto source = to_read(schedule, input);
    const bool apart =
        std::all_of(written.begin(), written.end(), [&](const at::Tensor& target) { return disjoint(source, target); });
    if (!apart) source = to_read(schedule, copy_of(source));
    sources.push_back(source.data_ptr());
    input_counts.push_back(carrier_count(source));
  }
  schedule.calls.push_back([sources = std::move(sources), input_counts = std::move(input_counts),
                            targets = std::move(targets), output_counts = std::move(output_counts),
                            type = carrier(inputs.front())](Transport& transport) {
    return transport.alltoall(sources, input_counts, targets, output_counts, type);
  });
}

}  // namespace cpudist::schedules
