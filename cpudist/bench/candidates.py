"""The rivals of the ccl group's allreduce besides gloo: oneCCL, MPI, torch without a transport, a copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist.bench.timing import CCL, Candidate, in_turn, timed

if TYPE_CHECKING:
    from cpudist.world import World

ONECCL, MPI, DISPATCH, COPY = "oneCCL", "mpi4py", "torch alone", "memory copy"
_FAKE = "fake"  # torch's own backend that does nothing
_TRANSPORT = "CPUDIST_TRANSPORT"


def of_allreduce(world: World) -> Callable[[int, torch.dtype, int], dict[str, Candidate]]:
    """Make the groups and return a function that makes the candidates, by name; none where the job is not on ccl.

    It takes a tensor's size in bytes, its type, and the number of tensors to use in turn.
    """
    if world.backend != CCL:
        return lambda size, dtype, buffers: {}
    oneccl, fake, mpi = _oneccl_group(), _fake_group(), _mpi(world)

    def make(size: int, dtype: torch.dtype, buffers: int) -> dict[str, Candidate]:
        def tensors() -> list[torch.Tensor]:
            return [torch.zeros(size // dtype.itemsize, dtype=dtype) for _ in range(buffers)]

        def all_reduce(group: dist.ProcessGroup) -> Candidate:
            return timed(in_turn(partial(dist.all_reduce, tensor, group=group) for tensor in tensors()))

        made = {} if oneccl is None else {ONECCL: all_reduce(oneccl)}
        if mpi is not None and dtype is not torch.bfloat16:  # MPI has no such type
            allreduce = mpi.COMM_WORLD.Allreduce
            made[MPI] = timed(in_turn(partial(allreduce, mpi.IN_PLACE, tensor.numpy()) for tensor in tensors()))
        made[DISPATCH] = all_reduce(fake)
        copies = zip(tensors(), tensors(), strict=True)  # every rank, within its own memory
        made[COPY] = timed(in_turn(partial(target.copy_, source) for source, target in copies))
        return made

    return make


def _oneccl_group() -> dist.ProcessGroup | None:
    """Make a ccl group without our own transport; return None where the job's group has none either."""
    if os.environ.get(_TRANSPORT):
        return None
    os.environ[_TRANSPORT] = "oneccl"  # read when a group is made
    try:
        group: dist.ProcessGroup = dist.new_group(backend=CCL)
        return group
    finally:
        del os.environ[_TRANSPORT]


def _fake_group() -> dist.ProcessGroup:
    """Make a group whose all_reduce does nothing: it shows the cost of a call in torch itself."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers it)

    group: dist.ProcessGroup = dist.new_group(backend=_FAKE)
    return group


def _mpi(world: World) -> Any | None:
    """Return the module ``mpi4py.MPI`` where MPI's world is the job's; None where the job does not use MPI."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized():
        return None
    comm = module.COMM_WORLD
    return module if (comm.rank, comm.size) == (world.rank, world.size) else None
