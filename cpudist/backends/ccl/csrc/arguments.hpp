// What callers of a collective may get wrong, checked before anything is sent. `name` is the collective's, for the message:
// a ValueError, or a TypeError where it is the kind or the element type of a tensor.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace cpudist {

using Tensors = std::vector<at::Tensor>;

// A dense tensor on the CPU.
void check_tensor(const char* name, const at::Tensor& tensor);

// A list of one tensor: that tensor.
const at::Tensor& only(const char* name, const Tensors& tensors);

// One tensor per rank of the group, all of the type of `like`.
void check_list(const char* name, const Tensors& tensors, size_t size, const at::Tensor& like);

void check_root(const char* name, int64_t root, int size);

// A rank's own tensor, and the one in the list that stands for it.
void check_same_size(const char* name, const at::Tensor& own, const at::Tensor& counterpart);

void check_pairs(const char* name, const Tensors& outputs, const Tensors& inputs);

// A tensor that holds one equal share per rank, as those shares.
Tensors shares(const char* name, const at::Tensor& whole, const at::Tensor& share, int size);

// The rows that a tensor exchanges with each rank in all_to_all_single; no split sizes: equal shares.
Tensors split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);

}  // namespace cpudist
