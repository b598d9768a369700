"""The run record: what ran where, how fast, and how it ended, as JSON that rank 0 writes.

Its fields are part of the public surface (README, "The run record"). Whoever knows something puts it in: the
session the world, the Trainer callback the steps, a recipe its results. What nobody knew, as for a script
without Trainer, is null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from cpudist import optimization, session
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist.world import World

Exit = Literal["running", "completed", "failed"]

_PINNING = "cpudist/record/pinning/{rank}"
_STORE_SECONDS = 5.0


@dataclass
class Training:
    """What a training loop measured on this rank. Seconds are of whole optimizer steps, with data loading."""

    steps: int = 0
    step_seconds: list[float] = field(default_factory=list)
    samples_per_step: int | None = None  # over all ranks
    communication_seconds: float | None = None  # within step_seconds
    losses: list[float] = field(default_factory=list)


class RunRecord:
    """The record of this job; every rank has one, rank 0's is written."""

    def __init__(self, world: World, path: Path | None = None) -> None:
        self.world = world
        self.path = path
        self.dtype: str | None = None
        self.training = Training()
        self.tokens_per_sample: int | None = None
        self.results: dict[str, Any] = {}  # of a recipe: metrics, a sample, files written
        session.store().set(_PINNING.format(rank=world.rank), json.dumps(_own_pinning(world)))
        # Now, while all are there: when a job fails, the store may be busy or gone.
        self._pinning = _gather_pinning(world.size) if world.rank == 0 else []

    def default_path(self, path: Path) -> None:
        """Where to write if the user named no file. A killed job leaves a record that says "running"."""
        if self.path is None:
            self.path = path
        self.write("running")

    def write(self, exit: Exit) -> None:
        """Write the file, on rank 0 and if there is one. Readers see the old or the new one, never a part."""
        if self.world.rank != 0 or self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(self.as_dict(exit), indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.path)

    def as_dict(self, exit: Exit) -> dict[str, Any]:
        """The record's fields, in the order in which a reader wants them."""
        training, world = self.training, self.world
        seconds = training.step_seconds
        samples_per_second = tokens_per_second = None
        if seconds and training.samples_per_step is not None:
            samples_per_second = training.samples_per_step * len(seconds) / sum(seconds)
        if samples_per_second is not None and self.tokens_per_sample is not None:
            tokens_per_second = samples_per_second * self.tokens_per_sample
        fields = {
            "cpudist": __version__,
            "torch": torch.__version__,
            "launcher": world.launcher,
            "hosts": list(world.hosts),
            "world_size": world.size,
            "backend": world.backend,
            "transport": session.transport(),
            "dtype": self.dtype,
            "optimizations": optimization.choices(),
            "pinning": self._pinning,
            "steps": training.steps or None,
            "samples_per_second": _rounded(samples_per_second),
            "tokens_per_second": _rounded(tokens_per_second),
            "step_seconds": _step_seconds(seconds),
            "communication_share": _communication_share(training),
            "loss": {
                "first": _rounded(training.losses[0] if training.losses else None),
                "last": _rounded(training.losses[-1] if training.losses else None),
            },
            "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "exit": exit,
        }
        details = session.details()
        if details:
            fields["details"] = details
        if self.results:
            fields["results"] = self.results
        return fields


_current: RunRecord | None = None


def begin(world: World, path: Path | None) -> RunRecord:
    """Start this job's record; `path` is the file that the user named, if any."""
    global _current
    _current = RunRecord(world, path)
    _current.write("running")
    return _current


def current() -> RunRecord | None:
    """The record of the running job; None outside `cpudist-train`."""
    return _current


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _own_pinning(world: World) -> dict[str, Any]:
    return {
        "rank": world.rank,
        "host": world.hosts[world.node_rank],
        "cpus": sorted(os.sched_getaffinity(0)),
        "omp_threads": torch.get_num_threads(),
    }


def _gather_pinning(size: int) -> list[dict[str, Any] | None]:
    """What every rank said when it started its record; None for one that has not, or without a store."""
    store, keys = session.store(), [_PINNING.format(rank=rank) for rank in range(size)]
    with contextlib.suppress(RuntimeError):  # some rank is missing; the others' entries are still worth having
        store.wait(keys, timedelta(seconds=_STORE_SECONDS))
    try:
        return [json.loads(store.get(key)) if store.check([key]) else None for key in keys]
    except RuntimeError:
        return [None] * size


def _step_seconds(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"median": None, "p95": None}
    return {"median": _rounded(statistics.median(seconds)), "p95": _rounded(percentile(seconds, 0.95))}


def _communication_share(training: Training) -> float | None:
    if training.communication_seconds is None or not training.step_seconds:
        return None
    return _rounded(min(training.communication_seconds / sum(training.step_seconds), 1.0))


def _rounded(value: float | None) -> float | None:
    """Six digits are more than any of these numbers is good for. JSON has no infinity and no NaN."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
