"""What several CPU processes tell each other goes through the host: from the device, over ccl or gloo, and back.

PJRT's CPU runtime makes one world of each process (torch_xla 2.8: `ProcessGroupXla` then trains each alone, without a
word), so its own collectives cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
from torch.futures import Future
from torch_xla.debug import metrics

from cpudist.backends.ccl.backend import CclBackend
from cpudist.backends.ccl.group import create_group
from cpudist.backends.gloo import GlooBackend
from cpudist.backends.xla.buckets import keep_newest

# One flat tensor for each so many bytes: few transfers, and ccl cuts them into pieces by itself.
BUCKET_BYTES = 100 * 2**20


class HostCcl(CclBackend):
    """ccl between the hosts of XLA devices: always cpudist's own, whose groups can be made by hand."""

    def __init__(self) -> None:
        self._intel = None

    def make(self, options: Any) -> Any:
        """A c10d backend for CPU tensors, from torch's ``_DistributedBackendOptions``."""
        return create_group(options)


class HostGloo(GlooBackend):
    """gloo between the hosts of XLA devices."""

    def make(self, options: Any) -> Any:
        """A c10d backend for CPU tensors, from torch's ``_DistributedBackendOptions``."""
        return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)


HOSTS: dict[str, type[HostCcl] | type[HostGloo]] = {"ccl": HostCcl, "gloo": HostGloo}

_fetched = 0


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU, once the device has computed them; all that is pending is computed with them, in one graph.

    Only what is asked for would be computed otherwise, and the rest, such as the loss, again from the beginning.
    """
    global _fetched
    keep_newest()
    torch_xla.sync()
    before = transfers()
    copies = [tensor.detach().cpu().contiguous() for tensor in tensors]
    _fetched += transfers() - before
    return copies


def put(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write `values`, on the CPU, into the tensors `targets` on a device."""
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value.to(target.device))


def transfers() -> int:
    """How often a device has handed data back in this process."""
    data = metrics.metric_data("TransferFromDeviceTime")
    return int(data[0]) if data else 0


def fetched() -> int:
    """How many of `transfers` were `fetch`'s."""
    return _fetched


def done(value: Any) -> Any:
    """A `Work` that has succeeded, with `value` as its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def reduce_flat(group: Any, tensors: Sequence[torch.Tensor], operation: Any, scale: float) -> None:
    """Reduce tensors of a device over all ranks of the c10d backend `group`, in place, in buckets of one type each."""
    buckets: list[list[torch.Tensor]] = []
    room: dict[torch.dtype, int] = {}
    open_bucket: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if room.get(tensor.dtype, -1) < size:
            open_bucket[tensor.dtype] = []
            buckets.append(open_bucket[tensor.dtype])
            room[tensor.dtype] = BUCKET_BYTES
        open_bucket[tensor.dtype].append(tensor)
        room[tensor.dtype] -= size
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    with torch.no_grad():
        flat = fetch([torch.cat([tensor.detach().reshape(-1) for tensor in bucket]) for bucket in buckets])
        works = [group.allreduce([values], options) for values in flat]
        for bucket, values, work in zip(buckets, flat, works, strict=True):
            work.wait()
            if scale != 1.0:
                values.mul_(scale)
            parts = torch.split(values.to(bucket[0].device), [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.detach().copy_(part.view(tensor.shape))
