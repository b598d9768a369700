"""What an allreduce of the ccl group is compared with, besides gloo: oneCCL and MPI themselves, and two limits."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from cpudist import job
from cpudist.backends.ccl import extension
from cpudist.bench.measure import COPY, DISPATCH, MPI, PIECES, RAW, timed
from cpudist.bench.timing import Contender

if TYPE_CHECKING:
    from cpudist.world import World

PIECE_BYTES = 4 << 20  # oneCCL's best in one machine; how the ccl group cuts a large message for it, too
_FAKE = "fake"  # torch's own backend that does nothing

_number = itertools.count()  # of a raw communicator: its key in the job's store must be new


def of_allreduce(world: World, size: int, dtype: torch.dtype, buffers: int) -> dict[str, Contender]:
    """All but the groups, by name, for tensors of `size` bytes; `buffers`: how many are used in turn."""
    contenders = {RAW: _raw(world, size, dtype, buffers, size)}
    if size > PIECE_BYTES:
        contenders[PIECES] = _raw(world, size, dtype, buffers, PIECE_BYTES)
    if (mpi := _mpi(world)) and dtype is not torch.bfloat16:  # MPI has no such type
        contenders[MPI] = _over_mpi(mpi, _tensors(size, dtype, buffers))
    contenders[DISPATCH] = _dispatch(_tensors(size, dtype, buffers))
    contenders[COPY] = _copy(_tensors(size, dtype, buffers), _tensors(size, dtype, buffers))
    return contenders


def _tensors(size: int, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    return [torch.zeros(size // dtype.itemsize, dtype=dtype) for _ in range(count)]


def _raw(world: World, size: int, dtype: torch.dtype, buffers: int, piece: int) -> Contender:
    """oneCCL without `torch.distributed`: a loop in C++ (csrc/oneccl/baseline.cpp)."""

    def measure(calls: int) -> list[float]:
        store = PrefixStore(f"bench/raw/{next(_number)}", job.require().meeting.store)
        return list(
            extension.load().allreduce_baseline(
                store,
                world.rank,
                world.size,
                bytes=size,
                bfloat16=dtype is torch.bfloat16,
                buffers=buffers,
                repeats=calls,
                piece_bytes=piece,
            )
        )

    return measure


def _mpi(world: World) -> Any | None:
    """The module ``mpi4py.MPI`` where the job has met over MPI, so that its world is the job's."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized():
        return None
    comm = module.COMM_WORLD
    return module if (comm.rank, comm.size) == (world.rank, world.size) else None


def _over_mpi(mpi: Any, tensors: list[torch.Tensor]) -> Contender:
    following = itertools.cycle([tensor.numpy() for tensor in tensors])
    return timed(lambda: mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, next(following)))


def _dispatch(tensors: list[torch.Tensor]) -> Contender:
    """An all_reduce that does nothing: what torch itself takes for a call."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers it)

    group = dist.new_group(backend=_FAKE)
    following = itertools.cycle(tensors)
    return timed(lambda: dist.all_reduce(next(following), group=group))


def _copy(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> Contender:
    """Every rank copies as many bytes within its own memory."""
    following = itertools.cycle(zip(sources, targets, strict=True))

    def copy() -> None:
        source, target = next(following)
        target.copy_(source)

    return timed(copy)
