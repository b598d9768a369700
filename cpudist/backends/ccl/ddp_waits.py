"""Measure this rank's waits for DDP's sums between hosts; they are waits for futures, which the engine does not count.

DDP records when a backward pass has computed its last gradient, and when the last sum is complete.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


class DdpWaits:
    """Communication waits of the watched models."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[DistributedDataParallel, float] = WeakKeyDictionary()  # end of the last wait
        self._seconds = 0.0
        self._lock = threading.Lock()

    def watch(self, model: DistributedDataParallel) -> None:
        """Make DDP record its times in every step; by default it does so in one step of a hundred."""
        if model not in self._ends:
            model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
            self._ends[model] = 0.0

    def seconds(self) -> float:
        """Return the seconds so far; of several backward passes between two calls only the last counts. Thread-safe."""
        with self._lock:
            for model, before in list(self._ends.items()):
                times = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
                end = times.get("backward_comm_time_end", 0)
                if end != before:
                    self._ends[model] = end
                    waited = times["backward_comm_time"] - times["backward_compute_comm_overlap_time"]
                    self._seconds += max(waited, 0) * 1e-9
            return self._seconds
