"""Data parallelism with a sharded optimizer: each rank updates its rows of every parameter.

Gradients are reduce-scattered, so a rank gets the sum of its own rows alone; its optimizer updates these; then all
ranks gather the updated rows (stage 2 of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", 2020, section 5). As in torch's FSDP2, optimizers see parameters as `DTensor`s that are sharded by
rows, so what is computed from all gradients, such as their norm, is right. Unlike in FSDP2, whole parameters stay in
the module, each in its own memory, and collectives work on them in place: nothing is packed, and nothing has to be
gathered for a forward pass or a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from cpudist.backends.sharded_optimizer import ShardedOptimizers
from cpudist.backends.shards import Shard
from cpudist.errors import UserError


class ShardedDataParallel(torch.nn.Module):
    """A model whose `parameters` are this rank's shards, for any optimizer that updates each element by itself.

    The optimizer may be made before or after this. Parameters that no rank used in a backward pass keep no gradient, as
    under DDP with ``find_unused_parameters``. Communication comes after the backward pass, and after the optimizer's
    step. The norm that `clip_grad_norm_` returns is a DTensor, as under FSDP2: ``norm.full_tensor()`` is the number,
    and on torch 2.8 ``float(norm)`` is not. `state_dict` and the module itself hold whole parameters on every rank;
    `Optimizer.state_dict` gathers the whole state, so all ranks call it.

    Args:
        module: the model, on the CPU; all ranks start with rank 0's parameters and buffers.
        averages: whether the default process group can average; otherwise sums are divided.

    Raises:
        UserError: the ranks have different models.
    """

    def __init__(self, module: torch.nn.Module, *, averages: bool) -> None:
        super().__init__()
        self.module = module
        group: Any = dist.group.WORLD
        self._group = group
        self._averages = averages
        self._syncs = True  # whether the next backward pass reduces gradients
        self._queued = False  # whether the reduction of this backward pass is queued
        self._buffers_differ = True  # whether buffers may have changed since the last broadcast
        _check_same(module)
        from torch.distributed.device_mesh import DeviceMesh  # late, as in shards.py

        mesh = DeviceMesh.from_group(self._group, "cpu")
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._shards = [Shard(parameter, mesh) for parameter in trained]
        self._by_parameter = {shard.whole: shard.own for shard in self._shards}
        _broadcast(tensor.detach() for tensor in [*module.parameters(), *module.buffers()])
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._after_gradient)  # type: ignore[no-untyped-call]
        self._optimizers = ShardedOptimizers(self._shards, self._group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._queued = False  # a backward pass may have failed
        if self._buffers_differ:
            _broadcast(self.module.buffers())
        self._buffers_differ = self._syncs and torch.is_grad_enabled()
        for shard in self._shards:
            shard.forget_if_zeroed()
        return self.module(*args, **kwargs)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the shards under their parameters' names, and the parameters that are not trained."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield name, self._by_parameter.get(parameter, parameter)

    def shards(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        """Return each trained parameter of the module with this rank's shard of it, which optimizers update."""
        return list(self._by_parameter.items())

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for shard in self._shards:
            shard.forget_if_zeroed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients of backward passes in the block on their rank; the next pass outside it reduces them all."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def _after_gradient(self, parameter: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._after_backward)

    @torch.no_grad()
    def _after_backward(self) -> None:
        self._queued = False
        if not self._syncs:
            for shard in self._shards:
                shard.keep_for_later()
            return
        used = torch.tensor([shard.whole.grad is not None for shard in self._shards], dtype=torch.uint8)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        reduced = [shard for shard, anywhere in zip(self._shards, used.tolist(), strict=True) if anywhere]
        if not reduced:
            return
        options = dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM)
        outputs, inputs = zip(*(shard.give_gradient() for shard in reduced), strict=True)
        self._group.reduce_scatter_tensor_coalesced(list(outputs), list(inputs), options).wait()
        for shard in reduced:
            shard.take_reduced(1 if self._averages else self._group.size())


def _check_same(module: torch.nn.Module) -> None:
    """Check that all ranks have the same model; otherwise collectives would hang or mix up parameters.

    Raises:
        UserError: names, shapes or types differ.
    """
    own = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    for rank, other in enumerate(every):
        if other != every[0]:
            raise UserError(f"rank {rank} has another model than rank 0; make one of the same names, shapes and types")


@torch.no_grad()
def _broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Copy rank 0's values to all ranks."""
    for tensor in tensors:
        dist.broadcast(tensor, 0)
