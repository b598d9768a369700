"""What this process really got: the masks of its threads, where they ran, and where its memory lies, from /proc."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.machine.cpulist import format_list
from cpudist.pinning.apply import Pinning
from cpudist.pinning.tasks import tasks
from cpudist.pinning.threads import COMMUNICATION_THREAD
from cpudist.placement.place import CORES_FOR_A_DATA_CORE

_SELF = Path("/proc/self")
# A thread that has used this share of the busiest one's time computes; the others wait, watch, or move messages.
_BUSY = 0.2
_DATA_WORKER = "pt_data_worker"  # torch/utils/data/_utils/worker.py
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
    """The threads of this process, how many of its pages lie on which NUMA node, and how many processes load data
    for it."""

    threads: tuple[Thread, ...]
    pages: dict[int, int]
    data_workers: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For the run record."""
        return {
            "threads": dict(sorted(Counter(thread.kind for thread in self.threads).items())),
            "ran_on": sorted({thread.cpu for thread in self.threads}),
            "pages": {str(node): count for node, count in sorted(self.pages.items())},
            "data_workers": self.data_workers,
        }


def observe(pinning: Pinning) -> Observed:
    """Look at this process now; a thread computes if it has since the process was pinned."""
    found = tasks()
    used = {thread.number: thread.ticks - pinning.ticks_before.get(thread.number, 0) for thread in found}
    most = max(used.values())
    threads = []
    for thread in found:
        if thread.number == os.getpid():
            kind = "main"
        elif thread.name == COMMUNICATION_THREAD:
            kind = "communication"
        else:
            kind = "computing" if used[thread.number] > _BUSY * most else "other"
        threads.append(Thread(thread.number, kind, thread.mask, thread.cpu))
    return Observed(tuple(threads), _pages(), _data_workers())


def mismatch(pinning: Pinning, observed: Observed, openmp: bool = True) -> str:
    """In what the process differs from its plan, in words; nothing where it does not.

    Args:
        openmp: whether OpenMP's threads compute, whose number is planned; another runtime has as many as it likes.
    """
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
    if openmp and computing > max(plan.omp_threads, len(plan.cpus)):
        reasons.append(f"{computing} threads compute on {len(plan.cpus)} CPUs")
    total = sum(observed.pages.values())
    near = sum(observed.pages.get(node, 0) for node in plan.numa_nodes)
    if pinning.bound and total and near < _NEAR * total:
        reasons.append(f"{1 - near / total:.0%} of its memory lies far from its cores")
    return "; ".join(reasons)


def not_counted_in(pinning: Pinning, observed: Observed) -> bool:
    """Whether processes that load data, which nobody had told of, run on the cores that compute, though a core could be
    kept for them."""
    plan = pinning.plan
    return observed.data_workers > 0 and not plan.data_cpus and len(plan.cpus) >= CORES_FOR_A_DATA_CORE


def _data_workers() -> int:
    """Processes of torch's DataLoader, which give themselves a name."""
    names = []
    for process in multiprocessing.active_children():
        with contextlib.suppress(OSError):  # it has ended
            names.append(Path(f"/proc/{process.pid}/comm").read_text().strip())
    return names.count(_DATA_WORKER)


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
