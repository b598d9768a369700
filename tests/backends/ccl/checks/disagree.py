"""Ranks that do not fit together, without a job: `disagree.py NAME`, with the name of one of these functions."""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta

import plain
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from cpudist import waiting
from cpudist.backends.ccl import extension


def counts() -> None:
    """Rank 0 sends one element where rank 1 expects five."""
    expected = [1] * size
    if rank == 1:
        expected[0] = 5
    dist.all_to_all_single(torch.zeros(sum(expected)), torch.ones(size), expected, [1] * size)


def gather() -> None:
    """Rank 0 expects five elements of the last rank, which gives one."""
    lengths = [1] * (size - 1) + [5 if rank == 0 else 1]
    dist.all_gather([torch.empty(length) for length in lengths], torch.ones(1))


def scatter() -> None:
    """All ranks agree on the total, but rank 0 has other shares."""
    lengths = [2] + [1] * (size - 1) if rank != 0 else [1] * (size - 1) + [2]
    dist.reduce_scatter(torch.empty(lengths[rank]), [torch.ones(length) for length in lengths])


def types() -> None:
    """A metric's placeholder is float32 on a rank without a sample."""
    mine = torch.zeros(6, dtype=torch.float32 if rank == 1 else torch.int64)
    dist.all_gather([torch.empty_like(mine) for _ in range(size)], mine)


def moved_types() -> None:
    """Types that no transport reduces, and one that travels as another."""
    mine = torch.zeros(6, dtype=torch.bool if rank == 1 else torch.float8_e5m2)
    dist.all_gather([torch.empty_like(mine) for _ in range(size)], mine)


def left() -> None:
    """A rank has no more batches, and destroys its groups as scripts do."""
    if rank == 1:
        dist.destroy_process_group()
    dist.all_reduce(torch.ones(3))


def never() -> None:
    """A rank never comes; the others wait for it until the timeout."""
    if rank == 1:
        time.sleep(20)
        os._exit(0)
    work = dist.all_reduce(torch.ones(3), group=impatient, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def wrapped() -> None:
    """torch's wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL passes on the timeout, and a question about errors.

    Its own checks are left out.
    """
    wrapper = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    extension.load().set_timeout(wrapper, 5)
    if rank == 1:
        time.sleep(20)
        os._exit(0)
    assert wrapper.get_error() == ErrorType.SUCCESS
    try:
        wrapper.wrapped_pg.allreduce([torch.ones(3)]).wait()
    finally:
        assert wrapper.get_error() == ErrorType.COMM_ERROR


def killed() -> None:
    """A rank is killed; the timeout is longer than the test."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(3))


plain.set_variables()
dist.init_process_group("ccl", timeout=timedelta(seconds=600))
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()
impatient = dist.new_group(timeout=timedelta(seconds=5))
dist.barrier()
begin = time.monotonic()
try:
    globals()[sys.argv[1]]()
except dist.DistBackendError as error:
    # In one piece: the launcher mixes the ranks' output.
    os.write(1, f"rank {rank} after {time.monotonic() - begin:.1f} s: {error}\n".encode())
    # The launcher kills the other ranks when the first one ends, and rank 0's store ends with it.
    store = dist.distributed_c10d._get_default_store()
    reporting = size if sys.argv[1] in ("counts", "gather", "scatter", "types", "moved_types") else size - 1
    with contextlib.suppress(RuntimeError):
        store.add("reported", 1)
        waiting.poll(lambda: store.add("reported", 0) == reporting, 10)
