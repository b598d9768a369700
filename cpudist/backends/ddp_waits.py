"""Measure this rank's waits for DDP's sums: they are waits for futures, which process groups do not count.

DDP records when a backward pass has computed its last gradient, and when the last sum is complete.
"""

import threading
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle


class DdpWaits:
    """Communication waits of the watched models."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[DistributedDataParallel, float] = WeakKeyDictionary()  # end of the last wait
        self._new = WeakSet[DistributedDataParallel]()  # models to watch; some may still be in their constructor
        self._seconds: float | None = None
        self._lock = threading.Lock()

    def watch_all(self) -> RemovableHandle:
        """Watch all models that DDP wraps until the returned handle is removed."""

        def note(wrapper: nn.Module, name: str, _module: nn.Module | None) -> None:
            if isinstance(wrapper, DistributedDataParallel) and name == "module":
                self._new.add(wrapper)

        return register_module_module_registration_hook(note)

    def seconds(self) -> float | None:
        """Return the seconds so far; None if no model has been watched.

        Of several backward passes between two calls only the last counts. Thread-safe.
        """
        with self._lock:
            for model in [model for model in self._new if getattr(model, "logger", None) is not None]:
                self._new.discard(model)
                model._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]  # default: 100
                self._ends[model], self._seconds = 0.0, self._seconds or 0.0
            for model, before in list(self._ends.items()):
                times = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
                end = times.get("backward_comm_time_end", 0)
                if end != before and self._seconds is not None:
                    self._ends[model] = end
                    waited = times["backward_comm_time"] - times["backward_compute_comm_overlap_time"]
                    self._seconds += max(waited, 0) * 1e-9
            return self._seconds
