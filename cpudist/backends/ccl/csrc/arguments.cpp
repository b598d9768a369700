#include "arguments.hpp"

#include <numeric>

#include "errors.hpp"

namespace cpudist {

void check_tensor(const char* name, const at::Tensor& tensor) {
  check_type(tensor.device().is_cpu(), name, " takes CPU tensors, got one on ", tensor.device(), "; call cpu()");
  check_type(tensor.layout() == at::kStrided, name, " takes dense tensors, got a ", tensor.layout(),
             " one; call to_dense(), or all_reduce");
}

const at::Tensor& only(const char* name, const Tensors& tensors) {
  check_value(tensors.size() == 1, name, " takes one tensor per rank, got ", tensors.size(), "; pass one");
  check_tensor(name, tensors.front());
  return tensors.front();
}

void check_types(const char* name, const at::Tensor& one, const at::Tensor& other) {
  check_type(one.scalar_type() == other.scalar_type(), name, " needs tensors of one type, got ", one.scalar_type(),
             " and ", other.scalar_type(), "; convert one");
}

void check_list(const char* name, const Tensors& tensors, size_t size, const at::Tensor& like) {
  check_value(tensors.size() == size, name, " needs a list of ", size, " tensors, got ", tensors.size(),
              "; pass one per rank");
  for (const auto& tensor : tensors) {
    check_tensor(name, tensor);
    check_types(name, tensor, like);
  }
}

void check_tag(const char* name, int tag) {
  check_value(tag >= 0, name, ": a tag cannot be negative, got ", tag, "; give 0 or more");
}

void check_root(const char* name, int64_t root, int size) {
  check_value(root >= 0 && root < size, name, ": there is no rank ", root, " in a group of ", size,
              "; give a rank of the group");
}

void check_same_size(const char* name, const at::Tensor& own, const at::Tensor& counterpart) {
  check_value(own.numel() == counterpart.numel(), name, ": this rank's tensor has ", own.numel(),
              " elements, but its counterpart in the list has ", counterpart.numel(), "; make them equal");
}

const Tensors& only_list(const char* name, const std::vector<Tensors>& lists, int rank, int size,
                         const at::Tensor& own) {
  check_value(lists.size() == 1, name, " takes one list of tensors, got ", lists.size(), "; pass one");
  check_list(name, lists.front(), size, own);
  check_same_size(name, own, lists.front()[rank]);
  return lists.front();
}

void check_pairs(const char* name, const Tensors& outputs, const Tensors& inputs) {
  check_value(outputs.size() == inputs.size(), name, " needs as many outputs as inputs, got ", outputs.size(), " and ",
              inputs.size(), "; pass one output for each input");
}

Tensors shares(const char* name, const at::Tensor& whole, const at::Tensor& share, int size) {
  check_tensor(name, whole);
  check_tensor(name, share);
  check_types(name, whole, share);
  check_value(whole.numel() == share.numel() * size, name, ": a tensor of ", whole.numel(), " elements cannot hold ",
              size, " shares of ", share.numel(), "; pass one that can");
  check_value(whole.is_contiguous(), name, " needs a contiguous tensor for all ranks' shares; call contiguous()");
  return whole.view({-1}).split_with_sizes(std::vector<int64_t>(size, share.numel()));
}

Tensors split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  check_tensor("all_to_all_single", tensor);
  check_value(tensor.is_contiguous(), "all_to_all_single needs contiguous tensors; call contiguous()");
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (splits.empty()) {
    check_value(rows % size == 0, "all_to_all_single: ", rows, " rows do not divide among ", size,
                " ranks; give split sizes");
    return tensor.split_with_sizes(std::vector<int64_t>(size, rows / size));
  }
  check_value(static_cast<int>(splits.size()) == size, "all_to_all_single needs ", size, " split sizes, got ",
              splits.size(), "; give one per rank");
  check_value(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
              "all_to_all_single: the split sizes do not add up to the tensor's rows; make them add up to ", rows);
  return tensor.split_with_sizes(splits);
}

}  // namespace cpudist
