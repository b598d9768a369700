"""DDP's communication hook, and averages of vectors, that cross the network as bfloat16 or in blocks of int8.

The conversion is the process group's (csrc/oneccl/exchange.hpp). Both have groups of their own, so the numbers of other
calls stay as they are.
"""

# No annotations as text here: DDP compares those of its hook with types.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cpudist.backends.ccl import extension
from cpudist.backends.ccl.ccl_group import WireOptions
from cpudist.backends.error_feedback import settle

# DDP makes its buckets anew after its first step; a residual of int8 belongs to one bucket's parameters.
_EXACT_STEPS = 2


class _WireGroup:
    """A process group whose sums cross the network in another format; all ranks of `group` make it together.

    Args:
        group: the ranks.
        wire: "bf16" or "int8".

    Attributes:
        loses: whether the format needs error feedback: int8 does.
    """

    def __init__(self, group: Any, wire: str) -> None:
        ranks = dist.get_process_group_ranks(group)
        self.loses = wire == "int8"
        self._group = dist.new_group(
            ranks,
            backend="ccl",
            pg_options=WireOptions(wire),
            use_local_synchronization=len(ranks) < dist.get_world_size(),
            group_desc="compressed gradients",
        )

    def average(self, tensor: torch.Tensor) -> Any:
        """Start averaging a tensor in place; return the work."""
        return dist.all_reduce(tensor, dist.ReduceOp.AVG, group=self._group, async_op=True)

    def average_with(self, residual: torch.Tensor, tensor: torch.Tensor) -> Any:
        """Start averaging a tensor of float32 in place, with what was lost of earlier ones; return the work."""
        return extension.load().allreduce_with_residual(self._backend(), tensor, residual)

    def keep_own(self, residual: torch.Tensor) -> None:
        """Zero the values of a residual that other ranks of this host keep."""
        extension.load().keep_own(self._backend(), residual)

    def _backend(self) -> Any:
        backend = self._group._get_backend(torch.device("cpu"))
        return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


class CompressedGradients:
    """State of the hook `average`: the group, and what int8 has lost of each bucket (error feedback).

    Args:
        group: the process group of DDP, whose ranks make this together.
        wire: "bf16" or "int8".

    Attributes:
        residuals: what int8 has lost on this rank, by the number of the bucket.
        keep_own: zeroes the values of a residual that other ranks of this host keep.
    """

    def __init__(self, group: dist.ProcessGroup, wire: str) -> None:
        self._wire = _WireGroup(group, wire)
        self._exact = group
        self._step = 0
        self.residuals: dict[int, torch.Tensor] = {}
        self.keep_own = self._wire.keep_own

    def start(self, bucket: dist.GradBucket) -> tuple[Any, torch.Tensor]:
        """Start averaging a bucket; return the work, and the tensor that will hold the result."""
        step = self._step
        self._step += bucket.is_last()
        tensor = bucket.buffer()
        if not self._wire.loses:
            return self._wire.average(tensor), tensor
        if step < _EXACT_STEPS:
            return dist.all_reduce(tensor, dist.ReduceOp.AVG, group=self._exact, async_op=True), tensor
        tensor = tensor.float()  # the buffer itself if it is of float32
        residual = _residual_for(tensor, self.residuals.get(bucket.index()))
        self.residuals[bucket.index()] = residual
        return self._wire.average_with(residual, tensor), tensor


class CompressedAveraging:
    """Averages vectors over all ranks, which make this together; see `Averaging`.

    Args:
        wire: "bf16" or "int8".
    """

    def __init__(self, wire: str) -> None:
        self._wire = _WireGroup(dist.group.WORLD, wire)
        self._lost: torch.Tensor | None = None  # on this rank
        self._settled: torch.Tensor | None = None

    @property
    def residual(self) -> torch.Tensor | None:
        """What the averages have lost, shaped as their vector, as of `settle`; None: nothing."""
        return self._settled

    @residual.setter
    def residual(self, residual: torch.Tensor | None) -> None:
        self._settled = self._lost = None
        if self._wire.loses and residual is not None:
            self._settled, self._lost = residual, residual.clone()
            self._wire.keep_own(self._lost)

    def settle(self) -> None:
        """Make `residual` the same on all ranks; every rank calls it after the same average."""
        errors = {} if self._lost is None else {0: self._lost}
        self._settled = settle(errors, dist.group.WORLD, self._wire.keep_own).get(0)

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin an average as `Averaging.begin` says.

        Args:
            vector: of float32, shape (n,), the same n in every call.
        """
        if self._wire.loses:
            self._lost = _residual_for(vector, self._lost)
            work = self._wire.average_with(self._lost, vector)
        else:
            work = self._wire.average(vector)
        wait: Callable[[], object] = work.get_future().wait  # with a future, the group makes progress by itself
        return wait


def average(state: CompressedGradients, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks; a communication hook of DDP."""
    work, tensor = state.start(bucket)

    def done(future: torch.futures.Future[Any]) -> torch.Tensor:
        future.value()  # raises what the call has raised
        buffer = bucket.buffer()
        return buffer if tensor is buffer else buffer.copy_(tensor)

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
    return future


def _residual_for(tensor: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """Return the residual of earlier averages; zeros if there is none of this size."""
    if residual is None or residual.numel() != tensor.numel():
        return torch.zeros_like(tensor)
    return residual
