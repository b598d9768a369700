"""Measure how long this rank waits for DDP's sums. DDP waits for futures, and process groups do not count these waits.

DDP waits in a callback at the end of the backward pass; two callbacks, before and after DDP's, measure the time. DDP
has these times as well, but behind a lock that the backward pass holds while it waits for the slowest rank.
"""

import time
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from cpudist.patching.undo import Changes


class DdpWaits:
    """Communication waits of all models that DDP wraps until `changes` are undone."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        # Seconds of all completed waits, and the start of the wait under way, if any. None before DDP wraps a model.
        # The tuple is replaced as a whole, because other threads read it.
        self._waited: tuple[float, float | None] | None = None
        changes.then(register_module_module_registration_hook(self._watch).remove)

    def seconds(self) -> float | None:
        """Return the seconds waited so far; None if DDP has wrapped no model. Thread-safe, and does not block."""
        if (waited := self._waited) is None:
            return None
        seconds, since = waited
        return seconds if since is None else seconds + time.perf_counter() - since

    def _watch(self, wrapper: nn.Module, name: str, module: nn.Module | None) -> None:
        if not isinstance(wrapper, DistributedDataParallel) or name != "module" or module is None:
            return
        queue: Any = Variable._execution_engine.queue_callback

        def in_backward(_: torch.Tensor) -> None:
            queue(before)

        def before() -> None:
            self._waited = self.seconds() or 0.0, time.perf_counter()
            queue(after)  # runs after DDP's callback, which is queued by now

        def after() -> None:
            self._waited = self.seconds() or 0.0, None

        parameter = next((one for one in module.parameters() if one.requires_grad), None)
        if parameter is not None:  # otherwise DDP refuses the model
            self._waited = self._waited or (0.0, None)
            self._changes.then(parameter.register_hook(in_backward).remove)  # type: ignore[no-untyped-call]
