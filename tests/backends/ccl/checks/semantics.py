"""What c10d's backends have in common besides the collectives, in a job."""

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from programs import leave, run_checks

import cpudist
from cpudist import job, waiting

world = cpudist.init("ccl", timeout=60)
rank, size = world.rank, world.size


def check_one_floating_point_state() -> None:
    """The smallest numbers are kept, whatever state the ranks' threads have, who polls, and how many ranks reduce."""
    smallest = torch.tensor([0x00010000], dtype=torch.int32).view(torch.float32)
    assert torch.set_flush_denormal(rank == 1)
    for count in (3, 1000, 100_000):
        for wait in ("wait", "future"):
            tensor = smallest.expand(count).clone()
            work = dist.all_reduce(tensor, async_op=True)
            work.get_future().wait() if wait == "future" else work.wait()
            assert (tensor.view(torch.int32) == 0x00010000 * size).all()
    # The state of the caller is as it was.
    assert ((smallest * 1).view(torch.int32) == 0).all() == (rank == 1)
    torch.set_flush_denormal(False)


def check_no_call_waits_for_a_late_peer() -> None:
    """A call that does so holds the engine's lock, and has no time limit."""
    store = job.require().store
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3), async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
        "broadcast": lambda: dist.broadcast(torch.ones(3), size - 1, async_op=True),
        "all_gather": lambda: dist.all_gather([torch.ones(3) for _ in range(size)], torch.ones(3), async_op=True),
        "flat all_gather": lambda: dist.all_gather_into_tensor(torch.ones(3 * size), torch.ones(3), async_op=True),
        "flat reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(3 * size), async_op=True),
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), async_op=True),
        "gather": lambda: dist.gather(
            torch.ones(3), [torch.ones(3) for _ in range(size)] if rank == 0 else None, async_op=True
        ),
    }
    for name, call in calls.items():
        if rank > 0:
            store.wait([f"returned/{name}"], timedelta(seconds=30))
        work = call()
        if rank == 0:
            assert not work.is_completed()
            store.set(f"returned/{name}", "1")
        work.wait()


def check_groups_that_come_and_go_beside_a_thread() -> None:
    """The garbage collector frees a group while it holds Python's lock, and the thread needs both locks."""
    beside = dist.new_group()

    def reduce() -> None:
        for count in range(300):
            tensor = torch.ones(1 + count)
            dist.all_reduce(tensor, group=beside)
            assert tensor[-1] == size

    thread = threading.Thread(target=reduce)
    thread.start()
    for _ in range(5):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)
        del group
        gc.collect()
    thread.join()


def check_groups_freed_in_another_order_on_each_rank() -> None:
    """And made again: over MPI the ranks free the communicators then, together and in one order."""
    for _ in range(2):
        groups = [dist.new_group() for _ in range(3)]
        works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in groups]
        for work in works:
            work.wait()
        for number in range(len(groups)):
            dist.destroy_process_group(groups[(number + rank) % len(groups)])


def check_a_rank_that_comes_late_to_a_group_is_named() -> None:
    """By its number in the job, its host and its line; once, by a rank that waits."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "LONG_WAIT_SECONDS", 1.0)
        patch.setattr(waiting, "say", said.append)
        if rank == size - 1:
            time.sleep(4)
        if rank >= size - 2:
            dist.destroy_process_group(dist.new_group([size - 2, size - 1], use_local_synchronization=True))
    if rank == size - 2:
        (line,) = said
        assert f"waiting for rank {size - 1} ({world.hosts[0]}, last in semantics.py:" in line, line


run_checks(globals())
leave()
