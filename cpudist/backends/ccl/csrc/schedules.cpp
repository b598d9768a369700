#include "schedules.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

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

// Returns the tensor's values in contiguous memory.
at::Tensor to_read(Schedule& schedule, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto buffer = tensor.contiguous();
  schedule.buffers.push_back(buffer);
  return buffer;
}

void check_writable(const at::Tensor& tensor) {
  check_value(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
              "cannot write to an expanded tensor: several of its elements share memory; clone() it first");
}

enum class Holds { kNothing, kInput };

// Returns contiguous memory for a result: the tensor's own, or a buffer that is copied to the tensor at the end.
at::Tensor to_write(Schedule& schedule, const at::Tensor& tensor, Holds holds, bool own_memory = true) {
  at::Tensor buffer = tensor;
  if (!tensor.is_contiguous() || !own_memory) {
    check_writable(tensor);
    const at::NoGradGuard no_grad;
    buffer = at::empty(tensor.sizes(), tensor.options());
    if (holds == Holds::kInput) buffer.copy_(tensor);
    schedule.finish.push_back([tensor, buffer] { tensor.copy_(buffer); });
  }
  schedule.buffers.push_back(buffer);
  return buffer;
}

// Checks that output tensors do not share memory.
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
                "two of the output tensors share memory; give each its own");
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

// Copies memory rather than tensors where that is possible: torch takes a microsecond for each copy.
static void unpack(const at::Tensor& message, const Tensors& tensors) {
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.is_contiguous()) {
      tensor.copy_(message.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    } else if (tensor.numel() > 0) {
      const auto* from = static_cast<const char*>(message.data_ptr()) + begin * message.element_size();
      std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    }
    begin += tensor.numel();
  }
}

static void allreduce_packed(Schedule& schedule, Tensors tensors, const ReduceOp& op) {
  const at::NoGradGuard no_grad;
  int64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.numel();
  const auto message = at::empty({total}, tensors.front().options());
  auto* to = static_cast<char*>(message.data_ptr());
  for (const auto& tensor : tensors) {
    check_writable(tensor);
    if (tensor.numel() == 0) continue;
    const auto source = tensor.contiguous();
    std::memcpy(to, source.data_ptr(), source.nbytes());
    to += source.nbytes();
  }
  allreduce(schedule, message, op);
  schedule.finish.push_back([tensors = std::move(tensors), message] { unpack(message, tensors); });
}

// Packing depends only on sizes and types, which are the same on all ranks.
void allreduce_all(Schedule& schedule, const Tensors& tensors, const ReduceOp& op) {
  constexpr size_t kSmall = size_t{4} << 10;  // 100 of this size were 1.4 times as fast packed, 100 of 16 KB slower
  const auto small = [](const at::Tensor& tensor) { return tensor.nbytes() <= kSmall; };
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    const auto type = tensors[begin].scalar_type();
    end = begin + 1;
    if (small(tensors[begin])) {
      while (end < tensors.size() && small(tensors[end]) && tensors[end].scalar_type() == type) ++end;
    }
    if (end == begin + 1) {
      allreduce(schedule, tensors[begin], op);
    } else {
      allreduce_packed(schedule, Tensors(tensors.begin() + begin, tensors.begin() + end), op);
    }
  }
}

void allreduce_with_residual(Schedule& schedule, const at::Tensor& tensor, const at::Tensor& residual) {
  schedule.buffers = {tensor, residual};
  schedule.calls.push_back([data = tensor.mutable_data_ptr<float>(), lost = residual.mutable_data_ptr<float>(),
                            count = static_cast<size_t>(tensor.numel())](Transport& transport) {
    return transport.allreduce_with_residual(data, lost, count);
  });
}

at::Tensor sparse_layout(const at::Tensor& input, int size) {
  std::vector<int64_t> row{input._nnz(), input.sparse_dim()};
  row.insert(row.end(), input.sizes().begin(), input.sizes().end());
  return at::tensor(row, at::kLong).repeat({size, 1});
}

void sum_sparse(Schedule& schedule, const at::Tensor& tensor, const at::Tensor& input, const at::Tensor& layout,
                int rank) {
  const at::NoGradGuard no_grad;
  Tensors indices;
  Tensors values;
  const auto sparse = input.sparse_dim();
  for (int64_t r = 0; r < layout.size(0); ++r) {
    const auto* row = layout[r].const_data_ptr<int64_t>();
    const bool same = row[1] == sparse && std::equal(input.sizes().begin(), input.sizes().end(), row + 2);
    check_value(same, "all_reduce: the sparse tensors of ranks ", rank, " and ", r,
                " have different shapes; pass equal ones");
    auto shape = input.values().sizes().vec();
    shape.front() = row[0];
    indices.push_back(at::empty({row[0], sparse}, at::kLong));
    values.push_back(at::empty(shape, input.values().options()));
  }
  allgather(schedule, indices, input.indices().t().contiguous(), rank);
  allgather(schedule, values, input.values().contiguous(), rank);
  schedule.finish.push_back([=, shape = input.sizes().vec()] {
    auto all = at::_sparse_coo_tensor_unsafe(at::cat(indices).t(), at::cat(values), shape);
    tensor.copy_(all.coalesce());
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

void allgather(Schedule& schedule, const Tensors& outputs, const at::Tensor& input, int rank, Sizes sizes) {
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
  schedule.calls.push_back([=, from = source.data_ptr(), targets = std::move(targets), counts = std::move(counts),
                            type = carrier(source)](Transport& transport) {
    const auto call = [&] { return transport.allgather(from, targets, counts, type); };
    return sizes == Sizes::kAgreed ? call() : transport.with_agreed_counts("all_gather", counts, call);
  });
}

void reduce_scatter(Schedule& schedule, const at::Tensor& output, const Tensors& inputs, const ReduceOp& op, int rank,
                    Sizes sizes) {
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
      [=, to = target.data_ptr(), sources = std::move(sources), counts = std::move(counts)](Transport& transport) {
        const auto call = [&] { return transport.reduce_scatter(sources, to, counts, type, reduction); };
        return sizes == Sizes::kAgreed ? call() : transport.with_agreed_counts("reduce_scatter", counts, call);
      });
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
