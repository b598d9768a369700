"""Measure how many threads compute in an operator, from CPU times."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Container
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SAMPLES = 5  # Measure the first five calls of each operator.
_QUIET_SECONDS = 0.03  # Longest wait for other threads to become idle.


class BusyThreads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Measures `operators` while it is active; `seen` counts the calls of every operator."""

    def __init__(self, operators: Container[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Counter[str]()
        self._operators = operators
        self._own: defaultdict[str, float] = defaultdict(float)  # CPU seconds of the calling thread
        self._all: defaultdict[str, float] = defaultdict(float)  # CPU seconds of all threads

    def threads(self) -> dict[str, float]:
        """Return the mean number of threads that have computed in each measured operator."""
        return {name: min(self._all[name] / own, torch.get_num_threads()) for name, own in self._own.items()}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().partition(".")[0]
        self.seen[name] += 1
        measured = name in self._operators and self.seen[name] <= _SAMPLES
        polling = self._wait_until_quiet() if measured else 0.0
        own, everything = time.thread_time(), time.process_time()
        result = function(*args, **(kwargs or {}))
        if measured:
            own, everything = time.thread_time() - own, time.process_time() - everything
            self._own[name] += own
            self._all[name] += max(everything - polling * own, own)
        return result

    def _wait_until_quiet(self) -> float:
        """Wait until OpenMP's threads stop spinning after their work; return how many threads are still busy."""
        began = time.perf_counter()
        while True:
            before, used = time.perf_counter(), time.process_time()
            time.sleep(0.001)
            now = time.perf_counter()
            running = (time.process_time() - used) / (now - before)
            if running < 0.1 or now - began > _QUIET_SECONDS:
                return running
