"""Warn about children of a rank, such as simulations and data workers, that compute on too few CPUs."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

from cpudist.console import number_of, say
from cpudist.observability.observers import Observer
from cpudist.store import Connection


class ComputingChildren(Observer):
    """Warns once if more children of rank 0 compute than it has CPUs: they inherit its mask, and compete for them."""

    def __init__(self, seconds: float = 15.0) -> None:
        self._interval, self._read = seconds, time.monotonic()
        self._busy: dict[int, float] = {}

    def beat(self, store: Connection) -> None:
        """Compare the children's times on a CPU, or in wait for one, with those of the last reading."""
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
    """Return the seconds that a process has computed or waited for a CPU; 0 if it has ended."""
    with suppress(OSError):
        return sum(map(int, Path(f"/proc/{pid}/schedstat").read_text().split()[:2])) / 1e9
    return 0.0
