"""The weights of unequal batches in the average of gradients.

DDP averages the gradients of the ranks, each the mean over a rank's own batch. If a rank has n of the N samples of W
ranks, its gradient needs the weight W n / N. Weights are applied to the gradients of the model's outputs.
"""

from typing import Any

import torch
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_map_only

from cpudist.errors import UserError

_SUM = 2  # at::Reduction::Sum
_KEEPS_SUMS = ("AddBackward", "SubBackward", "NegBackward", "MulBackward", "SumBackward", "ToCopyBackward")


def weighted(outputs: Any, weight: float) -> Any:
    """Return the outputs of a model; gradients that flow back through them are multiplied by `weight`."""
    found: list[torch.Tensor] = []

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return _Weighted.apply(tensor, weight) if tensor.requires_grad else tensor  # type: ignore[no-untyped-call]

    result = tree_map_only(torch.Tensor, apply, outputs)
    if not any(tensor.requires_grad for tensor in found) or len(tensors_in(outputs)) > len(found):
        remedy = "let the model return tensors, in tuples, lists or dicts"
        raise UserError(f"unequal batches cannot be weighted in outputs of the type {type(outputs).__name__}; {remedy}")
    return result


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors that DDP finds in a model's inputs or outputs."""
    return list(_find_tensors(values))  # type: ignore[no-untyped-call]


def sums_over(loss: torch.Tensor, samples: int) -> bool:
    """Return whether the last operations of `loss` add up a batch of `samples` without dividing the sum."""
    nodes = [loss.grad_fn]
    while nodes:
        node: Any = nodes.pop()
        name, sizes = type(node).__name__, getattr(node, "_saved_self_sym_sizes", ())
        adds_first = name.startswith("SumBackward") and 0 in getattr(node, "_saved_dim", (0,))
        if getattr(node, "_saved_reduction", None) == _SUM or (adds_first and tuple(sizes[:1]) == (samples,)):
            return True
        if name.startswith(_KEEPS_SUMS):
            nodes += [next_node for next_node, _ in node.next_functions if next_node is not None]
    return False


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return tensor.detach()  # if this were a view, in-place operations on it would fail

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.weight, None
