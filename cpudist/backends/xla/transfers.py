"""Transfers between XLA devices and the host; several CPU processes communicate through them.

PJRT's CPU runtime treats each process as a world of its own, so its collectives cannot be used: torch_xla 2.8's
`ProcessGroupXla` raises no error, but does not synchronise gradients. Tensors are fetched to the host, sent over ccl or
gloo, and put back.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
import torch_xla
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

# Size of the flat tensors to reduce, in bytes. Large ones need few transfers, and ccl divides them itself.
BUCKET_BYTES = 100 * 2**20

ddp_models: WeakSet[DistributedDataParallel] = WeakSet()  # models whose gradients are views of buckets


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous copies of the tensors, of any shapes, on the CPU, after the device has computed them.

    All pending operations are computed in the same graph. Otherwise only these tensors would be computed now, and the
    rest, such as the loss, would later be recomputed from the beginning.
    """
    _keep_newest_buckets()
    torch_xla.sync(reset_scope=False)  # do not close an `xp.Trace` of the caller
    return [tensor.detach().cpu().contiguous() for tensor in tensors]


def put(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write `values`, on the CPU, into the tensors `targets` of the same shapes on a device."""
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value.to(target.device))


def done(value: Any) -> Any:
    """Return a c10d `Work` that has succeeded, with `value` as its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def reduce_flat(group: Any, tensors: Sequence[torch.Tensor], operation: Any, scale: float) -> None:
    """Reduce tensors of a device over all ranks of `group`, in place, and multiply them by `scale`.

    The tensors may have any shapes and types; they are sent in buckets of one type each.
    """
    numbers, _ = dist._compute_bucket_assignment_by_size(list(tensors), [BUCKET_BYTES])
    buckets = [[tensors[number] for number in bucket] for bucket in numbers]
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


def _keep_newest_buckets() -> None:
    """Make every gradient that is a view of a DDP bucket refer only to the newest version of the bucket.

    DDP writes each gradient into its place in a bucket through a view. On XLA a write makes a new bucket from the last
    one, and each view keeps the bucket of its own write until it is read again. The graph then computes every kept
    bucket: 161 for ResNet-50's bucket of 94 MB.
    """
    with torch.no_grad():
        for model in list(ddp_models):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.clone()  # reading the gradient is enough; the unused clone is not computed
