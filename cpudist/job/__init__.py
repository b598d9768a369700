"""The running job: its ranks start, fail and end together.

- `job_options.py`: what a user asks of a job.
- `job.py`: `Job`, the owner of a job's state; `start_job`, and `current`, the one that runs.
- `peers.py`: this process among the ranks, with or without a backend.
- `communication.py`: how gradients cross the network between hosts; ranks that never communicated.
- `watch.py`, `failure.py`, `abort.py`: one rank fails or is lost, and the job and its launcher end everywhere.
- `heartbeat.py`: the thread of each rank in which the watch, `--stall` and signals are served once a second.
- `stall.py`: the end of a job in which nothing goes on.
- `pace.py`: the figures of each rank; the rank that makes the others wait, and why.
- `rank_status.py`, `rank_texts.py`: what a rank is doing, for the other ranks and in words; `reports.py`: which ranks
  keep the others waiting.
- `stack_server.py`: the ranks' stacks and figures, served on request.
- `rank_answers.py`: asks the ranks, for `cpudist stacks`, `cpudist top` and a notebook's cell; `rank_table.py`: the
  answers as a table.
- `record.py`: the run record; `gradient_times.py`: what it says of gradients.
- `rank_pinning.py`: torch and the rank's threads follow its pinning.
- `script_groups.py`: a script that makes `torch.distributed`'s process group itself joins the job.

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
