"""DDP's communication hook for gradients that cross the network as bfloat16 or in blocks of int8.

The conversion is the process group's (csrc/oneccl/exchange.hpp). The hook has a group of its own, so the numbers of
other calls stay as they are.
"""

# No annotations as text here: DDP compares those of its hook with types.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cpudist.backends.ccl import extension
from cpudist.backends.ccl.group import WireOptions
from cpudist.backends.error_feedback import settle

# DDP makes its buckets anew after its first step; a residual of int8 belongs to one bucket's parameters.
_EXACT_STEPS = 2


class CompressedGradients:
    """State of the hook `average`: the group, and what int8 has lost of each bucket (error feedback).

    All ranks of `group` make it together.

    Args:
        group: the process group of DDP.
        wire: "bf16" or "int8".

    Attributes:
        residuals: what int8 has lost on this rank, by the number of the bucket.
    """

    def __init__(self, group: dist.ProcessGroup, wire: str) -> None:
        ranks = dist.get_process_group_ranks(group)
        self.group = dist.new_group(
            ranks,
            backend="ccl",
            pg_options=WireOptions(wire),
            use_local_synchronization=len(ranks) < dist.get_world_size(),
            group_desc="compressed gradients",
        )
        self._exact = group
        self._feeds_back = wire == "int8"
        self._step = 0
        self.residuals: dict[int, torch.Tensor] = {}
        self._settled: dict[int, torch.Tensor] = {}

    def start(self, bucket: dist.GradBucket) -> tuple[Any, torch.Tensor]:
        """Start averaging a bucket; return the work, and the tensor that will hold the result."""
        step = self._step
        self._step += bucket.is_last()
        if not self._feeds_back or step < _EXACT_STEPS:
            tensor = bucket.buffer()
            group = self._exact if self._feeds_back else self.group
            return dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group, async_op=True), tensor
        tensor = bucket.buffer().float()  # the buffer itself if it is of float32
        return self._start(tensor, bucket.index()), tensor

    @property
    def residual(self) -> torch.Tensor | None:
        """What the averages of `begin` have lost, shaped as their vector, as of `settle`; None: nothing."""
        return self._settled.get(0)

    @residual.setter
    def residual(self, residual: torch.Tensor | None) -> None:
        self._settled = {0: residual} if self._feeds_back and residual is not None else {}
        self.residuals = {number: settled.clone() for number, settled in self._settled.items()}
        for own in self.residuals.values():
            self.keep_own(own)

    def settle(self) -> None:
        """Make `residual` the same on all ranks; every rank calls it after the same average."""
        self._settled = settle(self.residuals, dist.group.WORLD, self.keep_own)

    def keep_own(self, residual: torch.Tensor) -> None:
        """Zero the values of a residual that other ranks of this host keep."""
        extension.load().keep_own(self._backend(), residual)

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin an average as `Averaging.begin` says.

        Args:
            vector: of float32, shape (n,), the same n in every call.
        """
        if self._feeds_back:
            work = self._start(vector, 0)
        else:
            work = dist.all_reduce(vector, dist.ReduceOp.AVG, group=self.group, async_op=True)
        wait: Callable[[], object] = work.get_future().wait  # with a future, the group makes progress by itself
        return wait

    def _start(self, tensor: torch.Tensor, number: int) -> Any:
        residual = self.residuals.get(number)
        if residual is None or residual.numel() != tensor.numel():
            residual = self.residuals[number] = torch.zeros_like(tensor)
        return extension.load().allreduce_with_residual(self._backend(), tensor, residual)

    def _backend(self) -> Any:
        backend = self.group._get_backend(torch.device("cpu"))
        return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


def average(state: CompressedGradients, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks; a communication hook of DDP."""
    work, tensor = state.start(bucket)

    def done(future: torch.futures.Future[Any]) -> torch.Tensor:
        future.value()  # raises what the call has raised
        buffer = bucket.buffer()
        return buffer if tensor is buffer else buffer.copy_(tensor)

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
    return future
