"""What PyTorch's completion hooks are told, and when: on a job's ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from program import run_checks

import cpudist

world = cpudist.init("ccl", timeout=30)
PEER = world.rank ^ 1  # 0 and 1 exchange messages


class Told:
    """A hook on a group of its own that notes what it is told."""

    def __init__(self, also: Callable[[], object] = lambda: None) -> None:
        self.works: list[Any] = []
        self._also = also
        self.group = dist.new_group()
        assert not self.group._has_hooks()
        self.group._register_on_completion_hook(self)
        assert self.group._has_hooks()

    def __call__(self, work: Any) -> None:
        self.works.append(work)
        self._also()

    def names(self) -> list[tuple[str, int]]:
        """What the hook has been told once all of the group is complete."""
        self.group._wait_for_pending_works()
        return [(work.op_type.name, work.seq) for work in self.works]


def numbered(*names: str) -> list[tuple[str, int]]:
    return [(name, number) for number, name in enumerate(names, 1)]


def check_every_collective_is_told_once_and_in_order() -> None:
    told, each = Told(), [torch.zeros(3) for _ in range(world.size)]
    one, all_of_them, group = torch.ones(3), torch.zeros(3 * world.size), told.group
    dist.all_reduce(one, group=group)
    dist.broadcast(one, 0, group=group)
    dist.reduce(one, 0, group=group)
    dist.all_gather(each, one, group=group)
    dist.all_gather_into_tensor(all_of_them, one, group=group)
    dist.gather(one, each if world.rank == 0 else None, group=group)
    dist.scatter(one, each if world.rank == 0 else None, group=group)
    dist.reduce_scatter(one, each, group=group)
    dist.reduce_scatter_tensor(one, all_of_them, group=group)
    dist.all_to_all_single(all_of_them, all_of_them.clone(), group=group)
    dist.all_to_all(each, [part.clone() for part in each], group=group)
    dist.barrier(group=group)
    assert told.names() == numbered(
        *("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "GATHER", "SCATTER", "REDUCE_SCATTER"),
        *("_REDUCE_SCATTER_BASE", "ALLTOALL_BASE", "ALLTOALL", "BARRIER"),
    )


def check_messages_are_told_without_a_number() -> None:
    told = Told()
    if world.rank == 0:
        dist.send(torch.ones(1), PEER, group=told.group)
        dist.recv(torch.ones(1), PEER, group=told.group)
    elif world.rank == 1:
        dist.recv(torch.ones(1), group=told.group)
        dist.send(torch.ones(1), PEER, group=told.group)
    dist.barrier(group=told.group)
    names = told.names()
    messages = [("SEND", 0), ("RECV", 0)] if world.rank == 0 else [("RECVANYSOURCE", 0), ("SEND", 0)]
    # A send may be complete after what was called later.
    assert sorted(names) == sorted([("BARRIER", 1), *(messages if world.rank < 2 else [])])


def check_times() -> None:
    told = Told()
    dist.barrier(group=told.group)
    assert told.names() == numbered("BARRIER")
    if isinstance(told.works[0].time_started, datetime):  # up to torch 2.8; then of the clock that is never set
        now = datetime.now
    else:
        now = lambda: timedelta(seconds=time.monotonic())  # noqa: E731
    before = now()
    dist.all_reduce(torch.ones(1_000_000), group=told.group)
    after = now()
    assert told.names() == numbered("BARRIER", "ALLREDUCE")
    work = told.works[1]
    slack = timedelta(milliseconds=1)  # Python's times are of microseconds
    assert before - slack <= work.time_started < work.time_finished <= after + slack
    assert abs(work.active_duration - (work.time_finished - work.time_started)) < slack


def check_waits_for_works_that_nobody_waits_for() -> None:
    told = Told()
    tensors = [torch.full((100_000,), float(world.rank)) for _ in range(30)]
    works = [dist.all_reduce(tensor, group=told.group, async_op=True) for tensor in tensors]
    assert sorted(told.names()) == numbered(*["ALLREDUCE"] * 30)  # across machines they complete in any order
    assert all(work.is_completed() for work in works)
    assert {float(tensor[-1]) for tensor in tensors} == {sum(range(world.size))}


def check_a_hook_holds_nobody_up() -> None:
    """A hook may wait for what this rank does later, and other Python threads run while the rank waits for the hook."""
    later = threading.Event()
    told = Told(also=later.wait)
    for _ in range(10):
        dist.all_reduce(torch.ones(10), group=told.group)
        future = dist.all_reduce(torch.ones(10), group=told.group, async_op=True).get_future()
        future.wait()
    assert len(told.works) <= 1
    waiting = threading.Event()
    thread = threading.Thread(target=lambda: (waiting.wait(), later.set()))
    thread.start()
    waiting.set()
    assert told.names() == numbered(*["ALLREDUCE"] * 20)
    thread.join()


def check_a_hook_that_raises() -> None:
    def fail() -> None:
        raise ValueError("a hook's own error")

    told = Told(also=fail)
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=told.group)
    assert told.names() == numbered(*["ALLREDUCE"] * 3)


def check_polling_threads_and_hooks() -> None:
    """A polling thread takes the engine's lock and the GIL over and over, and hooks take the GIL."""
    told = Told(also=lambda: sum(range(1000)))
    for _ in range(100):
        work = dist.all_reduce(torch.ones(1000), group=told.group, async_op=True)
        while not work.is_completed():
            pass
    assert told.names() == numbered(*["ALLREDUCE"] * 100)


def check_groups_have_hooks_of_their_own() -> None:
    first, second = Told(), Told()
    dist.all_reduce(torch.ones(1), group=first.group)
    dist.barrier(group=second.group)
    dist.barrier()
    assert first.names() == numbered("ALLREDUCE")
    assert second.names() == numbered("BARRIER")
    with pytest.raises(dist.DistBackendError, match="hook already"):
        first.group._register_on_completion_hook(second)
    dist.barrier(group=first.group)
    assert first.names() == numbered("ALLREDUCE", "BARRIER")
    assert second.names() == numbered("BARRIER")


def check_destroying_a_group_waits_for_its_hook() -> None:
    later = threading.Event()
    told = Told(also=lambda: later.wait(0.2))
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=told.group)
    dist.destroy_process_group(told.group)
    assert len(told.works) == 3


def check_a_failed_call_is_not_told() -> None:
    told = Told()
    options = dist.BroadcastOptions()
    options.rootRank = world.size
    with pytest.raises(ValueError, match="there is no rank"):
        told.group.broadcast([torch.ones(1)], options)
    dist.barrier(group=told.group)
    assert told.names() == numbered("BARRIER")


def main() -> None:
    number = run_checks(globals())
    # What the default group's hook still has to hear is heard before the job ends.
    late: list[str] = []
    dist.group.WORLD._register_on_completion_hook(lambda work: late.append(work.op_type.name))
    dist.barrier()
    cpudist.shutdown()
    assert late == ["BARRIER"], late
    print(f"{number} checks of hooks passed on rank {world.rank}")


if __name__ == "__main__":
    main()
