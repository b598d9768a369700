"""The running job: one object owns its state and undoes its changes.

`supervision/` ends a job, and `observability/` observes it.
This package must not import optimization, transformers, programs or command lines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpudist.job.job import Job, current, fail, require, start_job, waited_for

__all__ = ["Job", "current", "fail", "require", "start_job", "waited_for"]


def __getattr__(name: str) -> Any:
    """Import `job.py` at the first use: it imports torch, which `cpudist stacks` does not need."""
    if name in __all__:
        return getattr(importlib.import_module("cpudist.job.job"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
