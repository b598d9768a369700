"""Which CPUs this process may use, and how many are left over."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path


def allowed_cpus() -> list[int]:
    """The numbers of the logical CPUs that this process may run on, in ascending order."""
    return sorted(os.sched_getaffinity(0))


def cpu_model() -> str:
    """The processor as the kernel names it, or the architecture where it does not (on Arm)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def cores_to_spare(own: Iterable[int], everyone: Iterable[Collection[int]], threads: int) -> int:
    """CPUs that a process's computing threads leave over; negative where there are fewer CPUs than threads.

    Args:
        own: the CPUs that this process may use.
        everyone: those of every process of the job on this machine, this one included. Processes that may use the
            same CPUs (no pinning) share them evenly.
        threads: how many threads of this process compute.
    """
    users = Counter(cpu for cpus in everyone for cpu in cpus)
    share = sum(1 / users[cpu] for cpu in own)
    return int(share + 1e-9) - threads
