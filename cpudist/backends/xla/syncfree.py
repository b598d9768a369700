"""Optimizers that skip a step whose gradients are not finite on the device itself.

With others, a GradScaler asks the device after every backward pass, and host and device wait for each other. float16 is
for GPUs, which no released wheel of torch_xla 2.8 or 2.9 offers: this, and what the backend has for float16, has been
tried on made-up devices only.
Source: PyTorch/XLA 2.8, docs/source/perf/amp.md ("AMP for XLA:GPU") and torch_xla/amp/syncfree.
"""

from __future__ import annotations

import torch
from torch_xla.amp import syncfree

_SYNC_FREE: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {
    torch.optim.SGD: syncfree.SGD,
    torch.optim.Adam: syncfree.Adam,
    torch.optim.AdamW: syncfree.AdamW,
}


def make(optimizer: torch.optim.Optimizer) -> str | None:
    """Change `optimizer` in place, since schedulers hold it, to the runtime's class, which differs in `step` alone.

    Returns:
        What was done, for the run record; None where the runtime has no such optimizer, or it has taken steps already.
    """
    sync_free = _SYNC_FREE.get(type(optimizer))
    if sync_free is None or optimizer.state:  # the runtime's class keeps the count of steps elsewhere
        return None
    optimizer.__class__ = sync_free
    optimizer.__setstate__({})  # installs torch's hooks on the new `step`
    return f"sync-free {sync_free.__name__}"
