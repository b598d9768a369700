"""The figures of a running rank, which it serves with its stacks; `cpudist top` compares two readings of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psutil
import torch

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.job.pace import PaceMeter

_LOSSES = 200  # the newest ones


def read_figures(
    host: str, backend: Backend, pace: PaceMeter, losses: Sequence[float], restarts: int
) -> dict[str, Any]:
    """Return this rank's figures for JSON: sums since its start, in seconds, and its state.

    `at` is its clock; `waited` are the seconds in which it was blocked in calls that have ended (null: not measured),
    `loading` those in its data loaders, `processor` those of its threads on CPUs; `memory` is in bytes.
    """
    return {
        "host": host,
        "at": time.monotonic(),
        "steps": pace.steps,
        "waited": backend.communication_seconds(),
        "loading": pace.loading,
        "processor": time.process_time(),
        "memory": psutil.Process().memory_info().rss,
        "threads": torch.get_num_threads(),
        "losses": list(losses[-_LOSSES:]),
        "restarts": restarts,
    }
