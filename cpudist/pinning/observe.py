"""What this process really got: the masks of its threads, where they ran, and where its memory lies, from /proc."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.console import number_of
from cpudist.pinning import Pinning
from cpudist.pinning.threads import COMMUNICATION_THREAD, Thread, threads
from cpudist.topology.cpulist import format_list
from cpudist.topology.pinning_plan import CORES_FOR_A_DATA_CORE

# A thread computes if it has used this share of the busiest thread's CPU time. OpenMP's threads do nearly what the main
# thread does; those that move messages, load data or log do less.
_COMPUTES = 0.5
_DATA_WORKER = "pt_data_worker"  # torch/utils/data/_utils/worker.py
# Libraries, and pages that were read before pinning, may lie on any node.
_NEAR = 0.8


@dataclass(frozen=True)
class Observed:
    """This process at one moment.

    Attributes:
        threads: each thread with its kind: "main", "communication", "computing" or "other".
        pages: how many of its pages lie on each NUMA node.
        data_workers: how many processes load data for it.
    """

    threads: tuple[tuple[str, Thread], ...]
    pages: dict[int, int]
    data_workers: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return what the run record has of it."""
        return {
            "threads": dict(sorted(Counter(kind for kind, _ in self.threads).items())),
            "ran_on": sorted({thread.cpu for _, thread in self.threads}),
            "pages": {str(node): count for node, count in sorted(self.pages.items())},
            "data_workers": self.data_workers,
        }


def cpu_seconds() -> dict[int, float]:
    """Return the CPU time that each thread of this process has used so far, in seconds."""
    return {thread.number: thread.seconds for thread in threads()}


def observe(pinning: Pinning, since: Mapping[int, float] | None = None) -> Observed:
    """Look at this process now.

    Args:
        pinning: what was assigned to it.
        since: `cpu_seconds` at the beginning of the training steps in which threads are seen to compute. None: no
            thread is said to compute, since reading and preparing data uses threads as well.
    """
    found = threads()
    used = {thread.number: thread.seconds - (since or {}).get(thread.number, 0.0) for thread in found}
    busy = max(used.values()) * _COMPUTES
    kinds = []
    for thread in found:
        if thread.number == os.getpid():
            kind = "main"
        elif thread.name == COMMUNICATION_THREAD:
            kind = "communication"
        elif since is not None and used[thread.number] > busy and thread.number not in pinning.of_job:
            kind = "computing"
        else:
            kind = "other"
        kinds.append((kind, thread))
    return Observed(tuple(kinds), _pages(), _data_workers())


def mismatch(pinning: Pinning, observed: Observed, openmp: bool = True) -> str:
    """Return in what the process differs from its plan, in words; empty if in nothing.

    Args:
        pinning: what was assigned to it.
        observed: what it got.
        openmp: whether OpenMP's threads compute, whose number is planned. Another runtime chooses its own number.
    """
    plan = pinning.plan
    reasons = []
    planned = [(kind, thread) for kind, thread in observed.threads if thread.number not in pinning.placed]
    outside = sorted({thread.cpu for _, thread in planned if not thread.mask <= set(plan.mask)})
    if pinning.bound and outside:
        reasons.append(f"threads may leave its CPUs {format_list(plan.mask)} (they ran on {format_list(outside)})")
    core = set(plan.communication_cpus)
    if pinning.bound and core and any(kind == "communication" and not t.mask <= core for kind, t in planned):
        reasons.append(f"its communication may leave the CPUs {format_list(core)} that are kept for it")
    computing = sum(kind in ("main", "computing") for kind, _ in observed.threads)
    if openmp and computing > max(plan.omp_threads, len(plan.cpus)):
        reasons.append(f"{computing} threads compute on {number_of(len(plan.cpus), 'CPU')}")
    total = sum(observed.pages.values())
    near = sum(observed.pages.get(node, 0) for node in plan.numa_nodes)
    if pinning.bound and total and near < _NEAR * total:
        reasons.append(f"{1 - near / total:.0%} of its memory lies far from its cores")
    return "; ".join(reasons)


def lacks_data_cores(pinning: Pinning, observed: Observed) -> bool:
    """Return whether data is loaded on computing cores, though a core could be kept for the processes that load it."""
    plan = pinning.plan
    return observed.data_workers > 0 and not plan.data_cpus and len(plan.cpus) >= CORES_FOR_A_DATA_CORE


def _data_workers() -> int:
    """Return the number of processes of torch's DataLoader, which set their own name."""
    names = []
    for process in multiprocessing.active_children():
        with contextlib.suppress(OSError):  # it has ended
            names.append(Path(f"/proc/{process.pid}/comm").read_text().strip())
    return names.count(_DATA_WORKER)


def _pages() -> dict[int, int]:
    """Return the number of anonymous pages on each NUMA node, from numa_maps; empty on kernels without NUMA."""
    try:
        lines = Path("/proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return {}
    pages: Counter[int] = Counter()
    for line in lines:
        if " anon=" in line:
            pages.update({int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)})
    return dict(pages)
