"""Aborts process groups: `aborting.py waiting|idle`."""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

import cpudist
from cpudist import job
from cpudist.waiting import poll


def waiting() -> None:
    """Rank 0 aborts, from another thread, the group in which it waits; the others call nothing before that."""
    world = cpudist.init("ccl", timeout=300)
    backend, store, group = job.require().backend, job.require().store, dist.group.WORLD
    dist.all_reduce(torch.ones(3))
    if world.rank != 0:
        store.get("aborted")
        return

    def abort() -> None:
        assert poll(lambda: bool(getattr(backend.calls(), "under_way", ())), 30)
        _abort_process_group()

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        print(f"caught: {error}", flush=True)
    thread.join()
    try:
        group.barrier()
    except dist.DistBackendError as error:
        print(f"again: {error}", flush=True)
    store.set("aborted", "1")


def idle() -> None:
    """Abort groups without calls under way: the peers take no part, and new groups can be made."""
    world = cpudist.init("ccl", timeout=30)
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    if world.rank == 0:
        group.abort()
        group.abort()  # which changes nothing
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except ValueError as error:
            print(f"refused: {error}", flush=True)
    check_sum(world)  # the default group is another one
    dist.barrier()
    _abort_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("ccl")
    check_sum(world)
    cpudist.shutdown()
    print("left", flush=True)


def check_sum(world: cpudist.World) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world.size] * 3


if __name__ == "__main__":
    {"waiting": waiting, "idle": idle}[sys.argv[1]]()
