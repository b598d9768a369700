"""Set the CPUs of this process's present and future threads."""

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cpudist.patching.undo import Changes
from cpudist.pinning.plan import RankPlan


class Thread(NamedTuple):
    """A thread: the kernel's number, and the CPUs that it may run on."""

    number: int
    mask: frozenset[int]


def threads() -> list[Thread]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            number = int(task.name)
            found.append(Thread(number, frozenset(os.sched_getaffinity(number))))
    return found


def bind(plan: RankPlan, changes: Changes) -> None:
    """Narrow this process's masks to the plan.

    Existing threads, such as OpenMP's, move, too. A thread whose mask differs from the calling thread's was pinned by
    other code, and is not moved.

    Raises:
        OSError: the kernel refuses the plan's CPUs.
    """
    before, own = frozenset(os.sched_getaffinity(0)), threading.get_native_id()
    changes.then(lambda: _release(frozenset(plan.cpus), before))
    os.sched_setaffinity(0, plan.cpus)
    for _ in range(2):  # an unmoved thread may start another one during the first pass
        for thread in threads():
            if thread.number != own and thread.mask == before:
                _move(thread.number, plan.cpus)


def _release(own: frozenset[int], before: frozenset[int]) -> None:
    """Restore the process's mask on the threads that the plan placed."""
    for thread in threads():
        if thread.mask == own != before:
            _move(thread.number, before)


def _move(thread: int, cpus: Iterable[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, cpus)
