"""Ranks without a job, in a program that knows torch alone: `plain.py NAME WORD`, NAME one of these functions.

WORD of `turns`: whether it destroys its group at the end; of the others: how many ranks get an error.
"""

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType


def turns(end: str) -> None:
    """Make the same groups again, use them, and leave in one of two ways."""
    for turn in range(3):
        options = {"pg_options": Backend.Options("ccl", timedelta(seconds=60))} if turn == 0 else {}
        dist.init_process_group("ccl", timeout=timedelta(seconds=60), **options)
        rank = dist.get_rank()
        if rank < 2:  # the keys of the earlier turns' group are still in the store
            pair = dist.new_group([0, 1], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=pair)
        if turn < 2:
            dist.destroy_process_group()
            time.sleep(0.2 * rank)  # ranks come at different times
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor)
    print(f"sum {tensor.item()} on {dist.get_backend()} over {os.environ['CCL_ATL_TRANSPORT']}")
    # A receive from any source listens to peers that never send.
    if rank == 0:
        assert dist.recv(torch.zeros(3)) == 1
    elif rank == 1:
        dist.send(torch.ones(3), 0)
    # A model in DDP holds the group to the very end, also when the group has been destroyed.
    global model
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(torch.ones(3_000_000), async_op=True)  # nobody waits for it; every rank must finish it all the same
    if end == "destroy":
        dist.destroy_process_group()


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


def sizes() -> None:
    """A mistake of two ranks that is symmetrical."""
    shares = [4, 2] if rank == 1 else [2, 0]
    dist.all_to_all_single(torch.zeros(sum(shares)), torch.ones(sum(shares)), shares, shares)


def empty() -> None:
    """A rank has no values in the second call, which the third one must not take for its own."""
    for step in range(3):
        dist.all_reduce(torch.ones(0 if (step, rank) == (1, 1) else 4))


def operation() -> None:
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def types(first: torch.dtype = torch.int64, second: torch.dtype = torch.float32) -> None:
    """A metric's placeholder is float32 on a rank without a sample."""
    mine = torch.zeros(6, dtype=second if rank == 1 else first)
    dist.all_gather([torch.empty_like(mine) for _ in range(size)], mine)


def moved_types() -> None:
    """Types that no transport reduces, and one that travels as another."""
    types(torch.float8_e5m2, torch.bool)


def left() -> None:
    """A rank has no more batches, and destroys its groups as scripts do."""
    if rank == 1:
        dist.destroy_process_group()
    dist.all_reduce(torch.ones(3))


def never() -> None:
    """A rank never comes; the others wait for it until the timeout."""
    work = dist.all_reduce(torch.ones(3), group=impatient, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def wrapped() -> None:
    """torch's wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL passes on the timeout and errors; its checks are left out."""
    from cpudist.backends.ccl import extension

    wrapper = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    extension.load().set_timeout(wrapper, 5)
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


name, word = sys.argv[1:]
if name == "turns":
    turns(word)
    sys.exit()
dist.init_process_group("ccl", timeout=timedelta(seconds=600))
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()
impatient = dist.new_group(timeout=timedelta(seconds=5))
dist.barrier()
begin = time.monotonic()
if name in ("never", "wrapped") and rank == 1:
    time.sleep(20)
    os._exit(0)
try:
    globals()[name]()
except dist.DistBackendError as error:
    from cpudist.waiting import poll

    # In one piece: the launcher mixes the ranks' output.
    os.write(1, f"rank {rank} after {time.monotonic() - begin:.1f} s: {error}\n".encode())
    # The launcher kills the other ranks when the first one ends, and rank 0's store ends with it.
    store = dist.distributed_c10d._get_default_store()
    with contextlib.suppress(RuntimeError):
        store.add("reported", 1)
        poll(lambda: store.add("reported", 0) == int(word), 10)
