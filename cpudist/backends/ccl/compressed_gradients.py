"""A communication hook of DDP that averages gradients as bfloat16 or as blocks of int8.

The process group converts the numbers (csrc/compressed_sum.hpp). The hook has its own group, so other calls stay
exact.
"""

# No `from __future__ import annotations` here: DDP compares its hook's annotations with types, not with texts.

from typing import Any

import torch
import torch.distributed as dist

from cpudist.backends.ccl import extension
from cpudist.backends.ccl.ccl_group import WireOptions

# int8 starts after these steps: a residual belongs to one bucket, and DDP rebuilds its buckets after the first step.
_EXACT_STEPS = 2


class CompressedGradients:
    """State of the hook `average`: the groups, and for int8 the error of each bucket (error feedback).

    All ranks of DDP's `group` create it; `wire` is "bf16" or "int8".
    """

    def __init__(self, group: dist.ProcessGroup, wire: str) -> None:
        ranks = dist.get_process_group_ranks(group)
        self._exact = group
        self._compressed: Any = dist.new_group(
            ranks,
            backend="ccl",
            pg_options=WireOptions(wire),
            use_local_synchronization=len(ranks) < dist.get_world_size(),
            group_desc="compressed gradients",
        )
        self._loses = wire == "int8"  # bfloat16 needs no error feedback
        self._step = 0
        self._residuals: dict[int, torch.Tensor] = {}  # by bucket index

    def start(self, bucket: dist.GradBucket) -> tuple[Any, torch.Tensor]:
        """Start averaging a bucket; return the work, and the tensor that will hold the result."""
        step = self._step
        self._step += int(bucket.is_last())
        tensor = bucket.buffer()
        if not self._loses or step < _EXACT_STEPS:
            group = self._exact if self._loses else self._compressed
            return dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group, async_op=True), tensor
        tensor = tensor.float()  # the bucket's own buffer if that is float32, otherwise a copy
        residual = self._residuals.get(bucket.index())
        if residual is None or residual.numel() != tensor.numel():
            residual = self._residuals[bucket.index()] = torch.zeros_like(tensor)
        return extension.load().allreduce_with_residual(self._backend(), tensor, residual), tensor

    def _backend(self) -> Any:
        backend = self._compressed._get_backend(torch.device("cpu"))
        return getattr(backend, "wrapped_pg", backend)  # wrapped if TORCH_DISTRIBUTED_DEBUG=DETAIL


def average(state: CompressedGradients, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks; a communication hook of DDP."""
    work, tensor = state.start(bucket)

    def done(future: torch.futures.Future[Any]) -> torch.Tensor:
        future.value()  # raises the call's error
        buffer = bucket.buffer()
        return buffer if tensor is buffer else buffer.copy_(tensor)

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
    return future
