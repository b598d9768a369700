"""The running job: one object owns its state, and undoes what it has changed.

- `job_options.py`: what a user asks of a job.
- `job.py`: `Job`, the owner of a job's state; `start_job`, and `current`, the one that runs.
- `rank_context.py`: this rank among the others, with or without a backend.
- `communication.py`: how gradients cross the network between hosts; ranks that never communicated.
- `rank_pinning.py`: applies a pinning to torch and the rank's threads.
- `script_groups.py`: a script that makes `torch.distributed`'s process group itself joins the job.

What ends a job is in `supervision/`, what observes it in `observability/`.

It must not import optimization, transformers, programs or command lines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpudist.job.job import Job, current, fail, require, start_job

__all__ = ["Job", "current", "fail", "require", "start_job"]


def __getattr__(name: str) -> Any:
    """Import `job.py` at the first use: it imports torch, which `cpudist stacks` does not need."""
    if name in __all__:
        return getattr(importlib.import_module("cpudist.job.job"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
