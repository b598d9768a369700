#include "plans.hpp"

#include <algorithm>
#include <cstring>

#include <ATen/MemoryOverlap.h>

namespace cpudist::plans {

namespace {

char* bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

at::Tensor to_read(Plan& plan, const at::Tensor& tensor) {
  auto buffer = tensor.resolve_conj().resolve_neg().contiguous();
  plan.keep({buffer});
  return buffer;
}

// A contiguous tensor that oneCCL writes to, copied back at the end where the caller's own is not contiguous.
at::Tensor to_write(Plan& plan, const at::Tensor& tensor, bool holds_input) {
  at::Tensor buffer = tensor;
  if (!tensor.is_contiguous()) {
    at::assert_no_internal_overlap(tensor);  // an expanded tensor has no place for every element
    buffer = holds_input ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options());
    plan.after.push_back([tensor, buffer] { tensor.copy_(buffer); });
  }
  plan.keep({buffer});
  return buffer;
}

void average(Plan& plan, const at::Tensor& tensor, const Reduction& reduction, int size) {
  if (!reduction.average) return;
  // Before the copy to a caller's non-contiguous tensor.
  plan.after.insert(plan.after.begin(), [=]() mutable { reduction.divide(const_cast<at::Tensor&>(tensor), size); });
}

size_t elements(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

// Whether tensors lie behind each other in memory, ready for a call that takes one flat buffer.
bool adjacent(const Tensors& tensors) {
  const auto* next = bytes(tensors.front());
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const bool here = tensor.is_contiguous() && !tensor.is_conj() && bytes(tensor) == next;
    next = bytes(tensor) + tensor.nbytes();
    return here;
  });
}

// One flat tensor for all: their own memory where they are adjacent, a copy otherwise.
at::Tensor pack(const Tensors& tensors) {
  if (adjacent(tensors)) {
    int64_t total = 0;
    for (const auto& tensor : tensors) total += tensor.numel();
    return at::from_blob(tensors.front().data_ptr(), {total}, tensors.front().options());
  }
  Tensors flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat).resolve_conj().resolve_neg();
}

}  // namespace

void broadcast(Plan& plan, const at::Tensor& tensor, int root) {
  auto* data = bytes(to_write(plan, tensor, /*holds_input=*/true));
  const auto type = carrier(tensor);
  const auto width = ccl::get_datatype_size(type);
  plan.add_pieces(carrier_count(tensor), width, [=](size_t offset, size_t length, const ccl::communicator& comm) {
    return ccl::broadcast(data + offset * width, length, type, root, comm);
  });
}

void allreduce(Plan& plan, const at::Tensor& tensor, const Reduction& reduction, int size) {
  const auto buffer = to_write(plan, tensor, /*holds_input=*/true);
  average(plan, buffer, reduction, size);
  auto* data = bytes(buffer);
  const auto width = static_cast<size_t>(tensor.element_size());
  const auto type = reduction.datatype;
  const auto operation = reduction.operation;
  plan.add_pieces(elements(tensor), width, [=](size_t offset, size_t length, const ccl::communicator& comm) {
    auto* piece = data + offset * width;
    return ccl::allreduce(piece, piece, length, type, operation, comm);
  });
}

void reduce(Plan& plan, const at::Tensor& tensor, const Reduction& reduction, int rank, int size, int root) {
  const bool receives = rank == root;
  const auto input = to_read(plan, tensor);
  const auto output = receives ? to_write(plan, tensor, /*holds_input=*/true) : at::empty_like(input);
  plan.keep({output});
  if (receives) average(plan, output, reduction, size);
  const auto* from = bytes(input);
  auto* to = bytes(output);
  const auto width = static_cast<size_t>(tensor.element_size());
  const auto type = reduction.datatype;
  const auto operation = reduction.operation;
  plan.add_pieces(elements(tensor), width, [=](size_t offset, size_t length, const ccl::communicator& comm) {
    return ccl::reduce(from + offset * width, to + offset * width, length, type, operation, root, comm);
  });
}

void allgather(Plan& plan, const Tensors& outputs, const at::Tensor& input) {
  const auto source = to_read(plan, input);
  const auto* from = bytes(source);
  const auto own = carrier_count(source);
  std::vector<char*> targets;
  std::vector<size_t> counts;
  for (const auto& output : outputs) {
    targets.push_back(bytes(to_write(plan, output, /*holds_input=*/false)));
    counts.push_back(carrier_count(output));
  }
  const auto type = carrier(input);
  const auto width = ccl::get_datatype_size(type);
  const auto longest = *std::max_element(counts.begin(), counts.end());
  plan.add_pieces(longest, width, [=](size_t offset, size_t length, const ccl::communicator& comm) {
    const auto part = [=](size_t count) { return count > offset ? std::min(count - offset, length) : size_t{0}; };
    ccl::vector_class<void*> pieces;
    ccl::vector_class<size_t> lengths;
    for (size_t rank = 0; rank < targets.size(); ++rank) {
      pieces.push_back(targets[rank] + offset * width);
      lengths.push_back(part(counts[rank]));
    }
    return ccl::allgatherv(from + offset * width, part(own), pieces, lengths, type, comm);
  });
}

void reduce_scatter(Plan& plan, const at::Tensor& output, const Tensors& inputs, const Reduction& reduction,
                    int rank) {
  const auto target = to_write(plan, output, /*holds_input=*/false);
  average(plan, target, reduction, static_cast<int>(inputs.size()));
  auto* to = bytes(target);
  const auto type = reduction.datatype;
  const auto operation = reduction.operation;
  const auto count = elements(output);
  const auto width = static_cast<size_t>(output.element_size());
  const bool even = std::all_of(inputs.begin(), inputs.end(),
                                [=](const at::Tensor& input) { return elements(input) == count; });
  if (even) {
    const auto source = pack(inputs);
    plan.keep(inputs);
    plan.keep({source});
    const auto* from = bytes(source);
    const auto ranks = inputs.size();
    // A piece has its part of every rank's share, and oneCCL wants those next to each other.
    plan.add_pieces(count, width * ranks, [=](size_t offset, size_t length, const ccl::communicator& comm) {
      if (length == count) return Issued(ccl::reduce_scatter(from, to, count, type, operation, comm));
      const auto piece = at::empty({static_cast<int64_t>(ranks * length * width)}, at::kByte);
      for (size_t share = 0; share < ranks; ++share) {
        std::memcpy(bytes(piece) + share * length * width, from + (share * count + offset) * width, length * width);
      }
      return Issued(ccl::reduce_scatter(bytes(piece), to + offset * width, length, type, operation, comm), piece);
    });
    return;
  }
  // oneCCL's own takes equal shares only: one reduction to each rank.
  for (size_t root = 0; root < inputs.size(); ++root) {
    const auto source = to_read(plan, inputs[root]);
    const bool receives = static_cast<int>(root) == rank;
    const auto sink = receives ? target : at::empty_like(source);
    plan.keep({sink});
    const auto* from = bytes(source);
    auto* into = bytes(sink);
    plan.add_pieces(elements(source), width, [=](size_t offset, size_t length, const ccl::communicator& comm) {
      return ccl::reduce(from + offset * width, into + offset * width, length, type, operation,
                         static_cast<int>(root), comm);
    });
  }
}

void exchange(Plan& plan, const Tensors& outputs, const Tensors& inputs) {
  const auto source = pack(inputs);
  const bool in_place = adjacent(outputs);
  const auto target = pack(outputs);
  plan.keep({source, target});
  plan.keep(inputs);
  plan.keep(outputs);
  std::vector<size_t> send_counts;
  std::vector<size_t> receive_counts;
  for (const auto& input : inputs) send_counts.push_back(carrier_count(input));
  for (const auto& output : outputs) receive_counts.push_back(carrier_count(output));
  const auto type = carrier(source);
  const auto* from = bytes(source);
  auto* to = bytes(target);
  plan.steps.push_back([=](const ccl::communicator& comm) {
    return ccl::alltoallv(from, send_counts, to, receive_counts, type, comm);
  });
  if (in_place) return;
  plan.after.push_back([=] {
    int64_t offset = 0;
    for (const auto& output : outputs) {
      output.copy_(target.narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  });
}

}  // namespace cpudist::plans
