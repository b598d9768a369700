"""Optimizers that leave out a step whose gradients are not finite by themselves, on the device.

Otherwise a GradScaler asks the device after every backward pass, and both wait.
Source: PyTorch/XLA 2.8, docs/source/perf/amp.md ("AMP for XLA:GPU") and torch_xla/amp/syncfree.
"""

from __future__ import annotations

import torch
from torch_xla.amp import syncfree

_WITHOUT_WAITING: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {
    torch.optim.SGD: syncfree.SGD,
    torch.optim.Adam: syncfree.Adam,
    torch.optim.AdamW: syncfree.AdamW,
}


def make(optimizer: torch.optim.Optimizer) -> str | None:
    """Turn `optimizer` into the runtime's of the same kind, which differs in its `step` alone; None where it has none.

    In place, since schedulers and scripts hold it. Returns what was done, for the run record.
    """
    without_waiting = _WITHOUT_WAITING.get(type(optimizer))
    if without_waiting is None or optimizer.state:  # its count of steps is kept in another place
        return None
    optimizer.__class__ = without_waiting
    optimizer.__setstate__({})  # hangs torch's hooks on the new `step`, as for a copy
    return f"sync-free {without_waiting.__name__}"
