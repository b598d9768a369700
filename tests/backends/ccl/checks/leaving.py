"""Ways to leave a job, or a group: `leaving.py NAME`, with the name of one of these functions, and its arguments."""

import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.distributed_c10d import _abort_process_group

import cpudist
from cpudist import job
from cpudist.backends.ccl import extension
from cpudist.errors import UserError
from cpudist.waiting import poll


def check_sum(size: int, count: int = 3, group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.ones(count)
    dist.all_reduce(tensor, group=group)
    assert tensor[[0, -1]].tolist() == [size] * 2


def send() -> None:
    """Rank 0 has left before rank 1 asks for what it sent, which is too large to be underway already."""
    world = cpudist.init("ccl", timeout=120)
    if world.rank == 0:
        dist.isend(torch.ones(10_000_000), 1)
    elif world.rank == 1:
        time.sleep(1)
        tensor = torch.zeros(10_000_000)
        dist.recv(tensor, 0)
        assert tensor.sum() == 10_000_000
        print("received")
    cpudist.shutdown()


def fork() -> None:
    """A child that ends as any program does, and one that raises: the parent's job goes on."""
    world = cpudist.init("ccl", timeout=120)
    check_sum(world.size)
    for fail in (False, True):
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(3))
            except dist.DistBackendError as error:
                print(f"child: {error}", flush=True)
            if fail:
                raise RuntimeError("the child's own")
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == (1 if fail else 7), status
        check_sum(world.size, 3_000_000)
    cpudist.shutdown()
    print("parent left")


def spawn(store: str) -> None:
    """Each rank spawns one child, a rank of a group of its own; mpi4py has been imported in both."""
    world = cpudist.init("ccl", timeout=60)
    torch.multiprocessing.spawn(child, (world.rank, world.size, store))
    dist.barrier()
    cpudist.shutdown()


def child(_: int, rank: int, size: int, store: str) -> None:
    from mpi4py import MPI

    assert MPI.COMM_WORLD.size == 1, "a child has no part in its parent's MPI"
    with pytest.raises(UserError, match="a rank of the job has started this process"):
        cpudist.init("ccl")
    if rank == 0:  # a group with a file as its store needs none of torch's variables, and ignores those that are set
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
    dist.init_process_group("ccl", init_method=f"file://{store}", rank=rank, world_size=size)
    check_sum(size)
    assert extension.load().traffic() == {"shared_memory": (1, 12)}
    print(f"child of {rank} has summed")
    dist.destroy_process_group()


def abort_waiting() -> None:
    """Rank 0 aborts, from another thread, the group in which it waits; the others call nothing before that."""
    world = cpudist.init("ccl", timeout=300)
    backend, store, group = job.require().backend, job.require().store, dist.group.WORLD
    check_sum(world.size)
    if world.rank != 0:
        store.get("aborted")
        return

    def abort() -> None:
        assert poll(lambda: bool(getattr(backend.calls(), "under_way", ())), 30)
        _abort_process_group()

    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(3))
    thread.join()
    with pytest.raises(dist.DistBackendError) as again:
        group.barrier()
    print(f"caught: {caught.value}\nagain: {again.value}", flush=True)
    store.set("aborted", "1")


def abort_idle() -> None:
    """Abort groups without calls under way: the peers take no part, and new groups can be made."""
    world = cpudist.init("ccl", timeout=120)
    group = dist.new_group()
    check_sum(world.size, group=group)
    if world.rank == 0:
        group.abort()
        group.abort()  # which changes nothing
        with pytest.raises(ValueError, match="ccl: all_reduce: the group has been aborted"):
            dist.all_reduce(torch.ones(3), group=group)
    check_sum(world.size)  # the default group is another one
    dist.barrier()
    _abort_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("ccl")
    check_sum(world.size)
    cpudist.shutdown()
    print("left", flush=True)


def finalize(level: str) -> None:
    """The script initialises MPI for this level of threads, and ends it while a call is under way."""
    import mpi4py

    mpi4py.rc.thread_level = level
    from mpi4py import MPI

    if level == "funneled":
        with pytest.raises(UserError, match="MPI was initialised for calls from one thread"):
            cpudist.init("ccl")
        return
    size = cpudist.init("ccl", timeout=120).size
    tensor = torch.ones(3_000_000)
    work = dist.all_reduce(tensor, async_op=True)
    MPI.Finalize()
    work.wait()
    assert tensor[-1] == size


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
