"""What this process really got: the masks of its threads, where they ran, and where its memory lies, from /proc."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.machine.cpulist import format_list, parse_list
from cpudist.pinning.apply import Pinning
from cpudist.pinning.threads import COMMUNICATION_THREAD

_SELF = Path("/proc/self")
# The fields of /proc/…/stat after the name, counted from 0: proc_pid_stat(5).
_USER_TICKS, _SYSTEM_TICKS, _PROCESSOR = 11, 12, 36
# A thread that has used this share of the busiest one's time computes; the others wait, watch, or move messages.
_BUSY = 0.2
# Libraries and what was read before pinning lie anywhere.
_NEAR = 0.8


@dataclass(frozen=True)
class Thread:
    """One thread: the kernel's number of it, its kind ("main", "communication", "computing" or "other"), its mask, and
    the CPU that it last ran on."""

    number: int
    kind: str
    mask: frozenset[int]
    cpu: int


@dataclass(frozen=True)
class Observed:
    """The threads of this process, and how many of its pages lie on which NUMA node."""

    threads: tuple[Thread, ...]
    pages: dict[int, int]

    def as_dict(self) -> dict[str, Any]:
        """For the run record."""
        return {
            "threads": dict(sorted(Counter(thread.kind for thread in self.threads).items())),
            "ran_on": sorted({thread.cpu for thread in self.threads}),
            "pages": {str(node): count for node, count in sorted(self.pages.items())},
        }


def observe() -> Observed:
    """Look at this process now."""
    found = [thread for task in (_SELF / "task").iterdir() if (thread := _read(task))]
    most = max(ticks for _, _, ticks, _, _ in found)
    threads = []
    for number, name, ticks, mask, cpu in found:
        if number == os.getpid():
            kind = "main"
        elif name == COMMUNICATION_THREAD:
            kind = "communication"
        else:
            kind = "computing" if ticks > _BUSY * most else "other"
        threads.append(Thread(number, kind, mask, cpu))
    return Observed(tuple(threads), _pages())


def mismatch(pinning: Pinning, observed: Observed) -> str:
    """In what the process differs from its plan, in words; nothing where it does not."""
    plan = pinning.plan
    reasons = []
    planned = [thread for thread in observed.threads if thread.number not in pinning.stay]
    outside = sorted({thread.cpu for thread in planned if not thread.mask <= set(plan.mask)})
    if pinning.bound and outside:
        reasons.append(f"threads may leave its CPUs {format_list(plan.mask)} (they ran on {format_list(outside)})")
    core = set(plan.communication_cpus)
    if pinning.bound and core and any(t.kind == "communication" and not t.mask <= core for t in planned):
        reasons.append(f"its communication may leave the CPUs {format_list(core)} that are kept for it")
    computing = sum(thread.kind in ("main", "computing") for thread in observed.threads)
    if computing > max(plan.omp_threads, len(plan.cpus)):
        reasons.append(f"{computing} threads compute on {len(plan.cpus)} CPUs")
    total = sum(observed.pages.values())
    near = sum(observed.pages.get(node, 0) for node in plan.numa_nodes)
    if pinning.bound and total and near < _NEAR * total:
        reasons.append(f"{1 - near / total:.0%} of its memory lies far from its cores")
    return "; ".join(reasons)


def _read(task: Path) -> tuple[int, str, int, frozenset[int], int] | None:
    """A thread's number, name, ticks of CPU time, mask, and last CPU; None if it has ended."""
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        status = (task / "status").read_text()
        name = (task / "comm").read_text().strip()
    except OSError:
        return None
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    mask = parse_list(allowed[1]) if allowed else frozenset()
    return int(task.name), name, int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]), mask, int(fields[_PROCESSOR])


def _pages() -> dict[int, int]:
    """Anonymous pages by NUMA node, from numa_maps; nothing on kernels without NUMA."""
    try:
        lines: Iterable[str] = (_SELF / "numa_maps").read_text().splitlines()
    except OSError:
        return {}
    pages: Counter[int] = Counter()
    for line in lines:
        if " anon=" in line:
            pages.update({int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)})
    return dict(pages)
