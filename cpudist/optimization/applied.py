"""Record and print the optimizations of the running job's models."""

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.console import say
from cpudist.optimization import precision

dtypes: set[torch.dtype] = set()  # The models of the running job compute in these types.


def note(names: list[str], dtype: torch.dtype) -> list[str]:
    """Record the optimizations of a model that computes in `dtype`; the run record has the newest model's.

    Returns: the record's entries: `names`, whose first is "ipex" or "native", and autocast.
    """
    if dtype is not torch.float32:
        names = [*names, f"{precision.name(dtype)} autocast"]
    dtypes.add(dtype)
    running = job.current()
    if running is not None:
        running.record.optimizations, running.record.dtype = names, precision.name(dtype)
        running.changes.then(dtypes.clear)
    return names


def announce(
    names: list[str], dtype: torch.dtype, no_ipex: str | None, *, warning: str = "", because: str = ""
) -> None:
    """Print one line on rank 0: `warning`, the record's entries `names`, `because`, and remarks about `dtype`."""
    slow = dtype is torch.bfloat16 and not precision.has_bf16()
    slowness = "; this CPU has no bfloat16 instructions: expect no gain from it" if slow else ""
    uncompiled = "" if no_ipex else "; torch.compile is off beside Intel's extension"
    if rank() == 0:
        say(f"optimize: {warning}{', '.join(names)}{because}{slowness}{uncompiled}")


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
