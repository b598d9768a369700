"""Read the pace of this rank: its counters of steps, seconds and bytes. Every rank publishes it with its status."""

import os
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import psutil
import torch

from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.record import RunRecord
from cpudist.supervision.rank_status import Pace
from cpudist.topology.machine import clock_of, this_machine


class PaceMeter(Observer):
    """Reads this rank's pace."""

    otherwise: ClassVar[dict[str, object]] = {"figures": {}}

    def __init__(self, job: ObservedJob, record: RunRecord) -> None:
        self._job, self._record = job, record
        self._newest_step: tuple[int, float | None, float | None, int] = 0, None, None, 0
        self._known = {"host": job.world.hosts[job.world.node_rank], "restarts": job.restarts}

    def step(self, optimizer: Any) -> None:
        """Note when the step has ended: the ranks' paces are compared at the ends of steps, which all ranks reach."""
        waited = self._job.backend.communication_seconds()
        self._newest_step = self._job.counter.steps, time.monotonic(), waited, self._job.balance.computed

    def figures(self) -> dict[str, Any]:
        """Return the figures of this rank for `cpudist top`."""
        now = self.read()
        return {**self._known, **(asdict(now) if now else {}), **self._record.newest()}

    def read(self, *, at_end: bool = False) -> Pace | None:
        """Return this rank's pace, or None after an error; any thread may call this."""
        used, backend = resource.getrusage(resource.RUSAGE_SELF), self._job.backend
        steps, step_at, step_waited, samples = self._newest_step
        memory = psutil.Process().memory_info().rss
        return Pace(
            steps,
            time.monotonic(),
            backend.communication_seconds(),
            backend.communicated_bytes(),
            self._job.counter.loading,
            used.ru_utime + used.ru_stime,
            memory,
            _run_queue_delay(),
            used.ru_minflt + used.ru_majflt,
            clock_of(min(os.sched_getaffinity(0))),
            torch.get_num_threads(),
            self._record.training.communication_share() if at_end else None,
            step_at,
            step_waited,
            samples,
            self._available(memory) if self._job.balance.follows_speeds else 0,
        )

    def _available(self, memory: int) -> int:
        """Return this rank's part of the free memory of its node, given the memory that the rank uses."""
        ranks, limit = self._job.world.local_size, this_machine().limits.memory
        free = int(psutil.virtual_memory().available)
        return max(free if limit is None else min(free, limit - ranks * memory), 0) // ranks


def _run_queue_delay() -> float | None:
    try:  # the second number is the main thread's run-queue delay in ns (the kernel's sched-stats.rst)
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return None
