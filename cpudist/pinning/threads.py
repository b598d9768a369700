"""On which CPUs the threads of this process may run, those that are there and those to come."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from cpudist.changes import Changes
from cpudist.machine.memory_policy import allocate_locally, forget_policy
from cpudist.placement.plan import RankPlan

COMMUNICATION_THREAD = "cpudist-ccl"  # csrc/engine.cpp gives it this name

_of_children: tuple[int, ...] = ()  # where processes that load data run; empty where they inherit what is right
_data_cores = 0


def data_cores() -> int:
    """How many cores of this process's share are kept for processes that load data."""
    return _data_cores


def keep_data_cores(count: int, changes: Changes) -> None:
    """Have `data_cores` say `count` until `changes` takes it back."""
    global _data_cores
    before, _data_cores = _data_cores, count

    def undo() -> None:
        global _data_cores
        _data_cores = before

    changes.then(undo)


def bind(plan: RankPlan, changes: Changes) -> frozenset[int]:
    """Narrow this process to the plan, and place its memory near.

    Threads that are there already, such as OpenMP's, move to the computing cores. The calling thread may use all of the
    plan's until `settle`, and so may the threads that it starts before that: the job's own. A thread that has another
    mask than the calling one has been placed by somebody, and stays.

    Returns:
        The threads that stay where they are, by the kernel's numbers.

    Raises:
        OSError: the kernel refuses the plan's CPUs.
    """
    before, own = frozenset(os.sched_getaffinity(0)), threading.get_native_id()
    changes.then(lambda: _release(plan, before))
    stay = frozenset(thread for thread, mask in _masks() if mask != before)
    os.sched_setaffinity(0, plan.mask)
    for _ in range(2):  # a thread that another one started meanwhile has the mask of that one
        for thread, mask in _masks():
            if thread != own and mask == before:
                _move(thread, plan.cpus)
    if len(plan.numa_nodes) == 1 and allocate_locally():  # refused in many containers, where the default is local too
        changes.then(forget_policy)
    return stay


def settle(plan: RankPlan, changes: Changes) -> None:
    """Give every thread its own cores, once the job's own threads run."""
    global _of_children
    if plan.mask == plan.cpus:
        return
    for thread, _ in _masks():
        if plan.communication_cpus and _name(thread) == COMMUNICATION_THREAD:
            _move(thread, plan.communication_cpus)
    os.sched_setaffinity(0, plan.cpus)  # OpenMP's threads come from this one
    if plan.data_cpus:
        _of_children = plan.mask
        changes.then(_forget_children)


def _release(plan: RankPlan, before: frozenset[int]) -> None:
    """Give the threads that are where the plan put them the mask that the process had."""
    ours = {frozenset(cpus) for cpus in (plan.mask, plan.cpus, plan.communication_cpus) if cpus}
    for thread, mask in _masks():
        if mask in ours and mask != before:
            _move(thread, before)


def _masks() -> Iterator[tuple[int, frozenset[int]]]:
    for task in Path("/proc/self/task").iterdir():
        try:
            yield int(task.name), frozenset(os.sched_getaffinity(int(task.name)))
        except ProcessLookupError:  # it has ended
            continue


def _move(thread: int, cpus: tuple[int, ...] | frozenset[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, cpus)


def _name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return ""


def _forget_children() -> None:
    global _of_children
    _of_children = ()


def _after_fork_in_child() -> None:
    if _of_children:
        os.sched_setaffinity(0, _of_children)


os.register_at_fork(after_in_child=_after_fork_in_child)
