"""Averages an embedding's part of a tied weight's gradient as rows, after DDP has averaged the rest.

Language models share one weight between the embedding and the output layer. The output layer's part of its gradient is
dense and ready early in the backward pass; the embedding's part has a row for each token and is ready at its end. DDP
would wait for both, and send half of a small model's gradients when nothing is left to compute. So here the embedding's
lookups have no edge to the weight in autograd's graph, and their rows follow by an all_gather.

Between two hosts of one core each, at 1 Gbit/s, a step with bf16 gradients then takes 0.86 (0.83-0.95) times as long in
float32, and 0.95 (0.87-1.08) under autocast; with gradients as they are 0.96 (0.84-1.08). These are medians and ranges
of eight turns, on a machine with other work. The first two are repeated by

    mpirun -f hostfile -n 2 -ppn 1 cpudist bench hosts --only bf16 --only "bf16, tied weight whole"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

Weight = torch.Tensor  # a parameter

# The limit of all ranks' rows together, as a share of the weight's rows. Otherwise the lookup stays as it is.
_MOST_ROWS = 0.5


@contextmanager
def output_layers_last(model: torch.nn.Module) -> Iterator[None]:
    """While DDP is made, let it find each tied weight in the output layer rather than in the embedding.

    DDP makes its buckets in the reverse order of parameters, and keeps them where it looks for unused parameters.
    """
    embeddings = [module for modules in tied(model).values() for module in modules]
    removed = [(module, module._parameters.pop("weight")) for module in embeddings]
    try:
        yield
    finally:
        for module, weight in removed:
            module._parameters["weight"] = weight


def send_apart(model: torch.nn.Module) -> list[str]:
    """Let the embeddings' parts of tied weights cross the network as rows, from the next forward pass on.

    Returns the names of these embeddings. All ranks of the model call it. Not for embeddings that change their weight
    or scale their gradient, compiled models, models outside DDP, or DDP options that change the average.
    """
    if not isinstance(model, DistributedDataParallel) or model.static_graph or model.mixed_precision is not None:
        return []
    if any(hasattr(module, "_orig_mod") for module in model.modules()):  # of torch.compile
        return []
    found = tied(model.module)
    if found:
        _Rows(model, found)
    embeddings = [module for modules in found.values() for module in modules]
    return [name for name, module in model.module.named_modules() if module in embeddings]


def tied(model: torch.nn.Module) -> dict[Weight, list[torch.nn.Embedding]]:
    """Return the weights that embeddings share with layers of other kinds, each with its embeddings."""
    owners: dict[Weight, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter.requires_grad:
                owners.setdefault(parameter, []).append(module)
    found = {}
    for weight, modules in owners.items():
        embeddings = [module for module in modules if isinstance(module, torch.nn.Embedding)]
        if 0 < len(embeddings) < len(modules) and all(map(_is_plain, embeddings)):
            found[weight] = embeddings
    return found


def _is_plain(module: torch.nn.Embedding) -> bool:
    replaced = "forward" in vars(module) or type(module).forward is not torch.nn.Embedding.forward
    return not (replaced or module.sparse or module.scale_grad_by_freq or module.max_norm is not None)


class _Rows:
    """The rows of one model in DDP, from its forward pass to the end of its backward pass.

    All ranks make one exchange in each backward pass in which DDP averages, also ranks without rows. The first gradient
    of that pass starts it, be it of the model's outputs, of a weight, or of a lookup.
    """

    def __init__(self, model: DistributedDataParallel, tied: dict[Weight, list[torch.nn.Embedding]]) -> None:
        self._model = ref(model)
        self._group = model.process_group
        self._tied = tied
        self._looks_up = False  # in a forward pass after which DDP averages
        self._due = False  # DDP averages in the next backward pass
        self._under_way = False  # in a backward pass in which DDP averages
        self._with_dense: set[Weight] = set()  # whose dense part is complete
        self._rows: dict[Weight, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        model.register_forward_pre_hook(self._before_forward)
        model.register_forward_hook(self._after_forward, always_call=True)
        for weight, embeddings in tied.items():
            weight.register_post_accumulate_grad_hook(self._dense_part_is_there)  # type: ignore[no-untyped-call]
            for module in embeddings:
                module.register_forward_hook(_Lookup(self))

    def _before_forward(self, model: Any, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._looks_up = (
            torch.is_grad_enabled()
            and model.require_backward_grad_sync
            and not model._join_config.enable
            and all(hook.__module__.startswith("cpudist.") for hook, _ in model._comm_hooks)
        )
        if self._looks_up:
            self._due, self._under_way = True, False
            self._with_dense.clear()
            self._rows.clear()

    def _after_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling() or not self._looks_up:
            return
        self._looks_up = False
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._begin)  # type: ignore[no-untyped-call]

    def look_up(self, module: torch.nn.Embedding, indices: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
        """Return `output` without the edge to the weight in autograd's graph; None where it needs the edge."""
        if torch.compiler.is_compiling() or not (self._looks_up and torch.is_grad_enabled()):
            return None
        if module.weight not in self._tied or not output.requires_grad:
            return None
        numbers, positions = torch.unique(indices, return_inverse=True)
        if len(numbers) * self._group.size() > _MOST_ROWS * len(module.weight):
            return None
        anchor = torch.zeros((), requires_grad=True)
        result: torch.Tensor = _cut(anchor, output.detach(), self, module, numbers, positions)
        return result

    def add(
        self, module: torch.nn.Embedding, numbers: torch.Tensor, positions: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Note the rows of a lookup, of which its gradient has come."""
        if not self._due:
            raise RuntimeError(
                "an embedding got its gradient after DDP had averaged those of its weight; go back through a graph "
                "once only, and checkpoint output layers with use_reentrant=False"
            )
        self._begin()
        width = gradient.shape[-1]
        values = torch.zeros(len(numbers), width, dtype=_sum_type(module.weight))
        values.index_add_(0, positions.flatten(), gradient.reshape(-1, width).to(values.dtype))
        if module.padding_idx is not None:
            kept = numbers != module.padding_idx
            numbers, values = numbers[kept], values[kept]
        self._rows.setdefault(module.weight, []).append((numbers, values))

    def _begin(self, gradient: Any = None) -> None:
        if self._due and not self._under_way:
            self._under_way = True
            _at_end_of_backward(self._complete)

    def _dense_part_is_there(self, weight: Any) -> None:
        self._with_dense.add(weight)
        self._begin()

    def _complete(self) -> None:
        """Give DDP zeros for weights without a dense part on this rank: DDP waits for all gradients."""
        model = self._model()
        if model is not None and not model.find_unused_parameters:
            for weight in self._rows:
                if weight not in self._with_dense:
                    torch.autograd.backward([weight], [torch.zeros_like(weight)])
        _at_end_of_backward(self._exchange)  # comes after the callback that DDP queues

    @torch.no_grad()
    def _exchange(self) -> None:
        self._due = self._under_way = False
        for weight in self._tied:
            numbers, values = _all_gather(*self._of(weight), self._group, self._wire(weight))
            if len(numbers) == 0:
                continue
            if weight.grad is None:  # no rank uses the output layer
                weight.grad = torch.zeros_like(weight)
            weight.grad.index_add_(0, numbers, (values / self._group.size()).to(weight.grad.dtype))
        self._rows.clear()

    def _of(self, weight: Weight) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self._rows.get(weight, [])
        if not parts:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, weight.shape[1], dtype=_sum_type(weight))
        return _sum(parts)

    def _wire(self, weight: Weight) -> torch.dtype:
        """Return the type in which rows cross the network: that of the gradients, which may be bfloat16."""
        model = self._model()
        compressed = model is not None and model._comm_hooks
        return torch.bfloat16 if compressed and weight.dtype is torch.float32 else weight.dtype


class _Lookup:
    """A forward hook of an embedding. Copies of the embedding look up without it."""

    def __init__(self, rows: _Rows | None = None) -> None:
        self._rows: Callable[[], _Rows | None] = ref(rows) if rows else lambda: None

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:
        rows = self._rows()
        return rows.look_up(module, inputs[0], output) if rows and inputs else None

    def __reduce__(self) -> Any:
        return _Lookup, ()


class _Cut(torch.autograd.Function):
    """Returns its second input; hands the gradient to `_Rows`. The first input only makes autograd call it."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, output: Any, *lookup: Any) -> Any:
        ctx.mark_dirty(output)  # so that the result is no view, which models may not change
        ctx.lookup = lookup  # not save_for_backward: activation checkpointing compares the number of saved tensors
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        rows, *lookup = ctx.lookup
        rows.add(*lookup, gradient)
        return (None,) * (2 + len(ctx.lookup))


_cut: Any = _Cut.apply


def _sum_type(weight: Weight) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _sum(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up rows, in the order of the parts; each has a row once at most, so the bits do not depend on threads."""
    numbers, positions = torch.unique(torch.cat([numbers for numbers, _ in parts]), return_inverse=True)
    total = torch.zeros(len(numbers), *parts[0][1].shape[1:], dtype=parts[0][1].dtype)
    for of_part, (_, values) in zip(positions.split([len(part) for part, _ in parts]), parts, strict=True):
        total.index_add_(0, of_part, values)
    return numbers, total


def _all_gather(
    numbers: torch.Tensor, values: torch.Tensor, group: Any, wire: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of all ranks' rows, the same bits on each; ranks have different numbers of them."""
    counts = torch.empty(group.size(), 1, dtype=torch.int64)
    dist.all_gather(list(counts), torch.tensor([len(numbers)]), group=group)
    longest = int(counts.max())
    if longest == 0:
        return numbers, values
    index, data = numbers.view(-1, 1).view(torch.uint8), values.to(wire).view(torch.uint8)
    sent = torch.zeros(longest, index.shape[1] + data.shape[1], dtype=torch.uint8)
    sent[: len(numbers)] = torch.cat([index, data], 1)
    gathered = torch.empty(group.size(), *sent.shape, dtype=torch.uint8)
    dist.all_gather(list(gathered), sent, group=group)
    parts = []
    for rows, count in zip(gathered, counts.flatten().tolist(), strict=True):
        index, data = rows[:count].split([index.shape[1], data.shape[1]], 1)
        parts.append((index.contiguous().view(torch.int64)[:, 0], data.contiguous().view(wire).to(values.dtype)))
    return _sum(parts)


def _at_end_of_backward(call: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)
