// Checks of a collective's arguments, done before anything is sent. They throw ValueError, or TypeError for the kind or
// the element type of a tensor. `name` is the collective's name, which the message quotes.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace cpudist {

using Tensors = std::vector<at::Tensor>;

// Checks that the tensor is dense and on the CPU.
void check_tensor(const char* name, const at::Tensor& tensor);

// Checks that the list has one tensor and returns it.
const at::Tensor& only(const char* name, const Tensors& tensors);

// Checks that the two tensors have the same element type.
void check_types(const char* name, const at::Tensor& one, const at::Tensor& other);

// Checks that the list has one tensor per rank of the group, all of the element type of `like`.
void check_list(const char* name, const Tensors& tensors, size_t size, const at::Tensor& like);

// Checks that the tag is not negative: the backend uses negative tags itself.
void check_tag(const char* name, int tag);

void check_root(const char* name, int64_t root, int size);

// Checks that a rank's own tensor has as many elements as its counterpart in the list.
void check_same_size(const char* name, const at::Tensor& own, const at::Tensor& counterpart);

// Checks that there is one list with a tensor per rank, this rank's as large as `own`; returns the list.
const Tensors& only_list(const char* name, const std::vector<Tensors>& lists, int rank, int size,
                         const at::Tensor& own);

void check_pairs(const char* name, const Tensors& outputs, const Tensors& inputs);

// Splits a tensor into one equal share per rank.
Tensors shares(const char* name, const at::Tensor& whole, const at::Tensor& share, int size);

// Splits the rows of an all_to_all_single tensor by rank, into equal shares if there are no split sizes.
Tensors split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size);

}  // namespace cpudist
