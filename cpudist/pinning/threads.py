"""Set the CPUs of this process's present and future threads, and the NUMA node of their pages.

Containers often refuse set_mempolicy(2), which places pages (Docker's seccomp profile without CAP_SYS_NICE).
"""

import contextlib
import ctypes
import os
import platform
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cpudist.patching.undo import Changes
from cpudist.topology.pinning_plan import RankPlan

# System call numbers of set_mempolicy and get_mempolicy; the newer architectures share one table.
_NUMBERS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236)}
_NAMES = ("default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted-interleave")
_DEFAULT, _LOCAL = _NAMES.index("default"), _NAMES.index("local")
_MODE_FLAGS = 0xE000  # set_mempolicy's flags in the upper bits of the mode


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
    """Narrow this process's masks to the plan, and place its memory on the plan's NUMA node.

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
    # Many containers refuse this call; the kernel's default policy places memory on the local node too.
    if len(plan.numa_nodes) == 1 and allocate_locally():
        changes.then(forget_policy)


def memory_policy() -> str | None:
    """Return this thread's memory policy, which new threads and processes inherit; None if the kernel refuses.

    "default" places pages on the local node, as "local" does.
    """
    mode = ctypes.c_int(-1)
    if _call(1, ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0)) != 0:
        return None
    number = mode.value & ~_MODE_FLAGS
    return _NAMES[number] if 0 <= number < len(_NAMES) else str(number)


def allocate_locally() -> bool:
    """Place pages on the node of the CPU that touches them first.

    The default does so too, but unmaps pages now and then to see which node uses them (NUMA balancing). This unmapping
    costs pinned threads time and gains nothing.

    Returns:
        False if the kernel refuses, or another policy has been set, which is kept.
    """
    if memory_policy() != "default":
        return False
    return _call(0, ctypes.c_int(_LOCAL), None, ctypes.c_ulong(0)) == 0


def forget_policy() -> None:
    """Undo `allocate_locally`: return to the kernel's default policy."""
    _call(0, ctypes.c_int(_DEFAULT), None, ctypes.c_ulong(0))


def _call(which: int, *arguments: object) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return -1
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[which]), *arguments))


def _release(own: frozenset[int], before: frozenset[int]) -> None:
    """Restore the process's mask on the threads that the plan placed."""
    for thread in threads():
        if thread.mask == own != before:
            _move(thread.number, before)


def _move(thread: int, cpus: Iterable[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, cpus)
