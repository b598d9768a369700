"""Warn about likely mistakes: no gradient synchronisation, and more computing child processes than a rank has CPUs."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from cpudist.console import number_of, say
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.store import Connection

_PAGE = "cpudist docs own-script"
_LIGHTNING = {"lightning", "pytorch_lightning"}  # Packages of Lightning, which trains each rank alone with devices=1.


class UnsynchronizedRanks(Observer):
    """Warns at the end of a job of several ranks if it has made optimizer steps but called no collective.

    It warns only for ranks on CPUs: on other devices gradients may bypass the backend.
    """

    def __init__(self, job: ObservedJob) -> None:
        self._job = job
        self._at_start = self._communicated()

    def end(self) -> None:
        """Warn if the ranks have made steps but called no collective."""
        world, steps = self._job.world, self._job.counter.steps
        if world.rank > 0 or world.size == 1 or world.device_type != "cpu" or self._at_start[0] is None:
            return
        if steps and self._communicated() == self._at_start:
            remedy = f"give Lightning devices={world.local_size}" if _LIGHTNING & sys.modules.keys() else _PAGE
            say(f"warning: {world.size} ranks trained without gradient synchronisation ({remedy})")

    def _communicated(self) -> tuple[object, float | None]:
        """Return a value that changes with a collective, even after the script has destroyed its groups."""
        return self._job.backend.progress(), self._job.backend.communication_seconds()


class ComputingChildren(Observer):
    """Warns once if more children of rank 0 compute than it has CPUs: they inherit its mask, so they share its CPUs."""

    def __init__(self, seconds: float = 15.0) -> None:
        self._interval, self._read = seconds, time.monotonic()
        self._busy: dict[int, float] = {}

    def beat(self, store: Connection) -> None:
        """Compare each child's seconds on a CPU or in the run queue with those of the last reading."""
        elapsed = time.monotonic() - self._read
        if elapsed < self._interval:
            return
        before, self._busy = self._busy, {child.pid: _busy(child.pid) for child in psutil.Process().children(True)}
        self._read += elapsed
        computing = sum(busy - before.get(pid, busy) > elapsed / 2 for pid, busy in self._busy.items())
        cpus = len(os.sched_getaffinity(0))
        if computing > cpus:
            self._interval = float("inf")
            say(
                f"warning: {computing} children of rank 0 compute on its {number_of(cpus, 'CPU')}; fewer ranks on a"
                " host, or OMP_NUM_THREADS below its cores, leave more to them (cpudist docs placement)"
            )


def _busy(pid: int) -> float:
    """Return the seconds that a process's main thread has computed or waited for a CPU; 0 if the process has ended."""
    with suppress(OSError):
        return sum(map(int, Path(f"/proc/{pid}/schedstat").read_text().split()[:2])) / 1e9
    return 0.0
