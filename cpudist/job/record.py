"""The run record: what ran where, how fast, and how it ended, as JSON that rank 0 writes.

Its fields are part of the public surface (README, "The run record"). Whoever knows something puts it in: the job its
world, `optimize` what it chose, the step timer the steps, a recipe its results. What nobody knew, as for a script
without Trainer, is null.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from cpudist.console import say
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.world import World

Exit = Literal["running", "completed", "interrupted", "failed"]


@dataclass
class Training:
    """What a training loop measured on this rank. Seconds are of whole optimizer steps, with data loading."""

    steps: int = 0
    step_seconds: list[float] = field(default_factory=list)
    samples_per_step: int | None = None  # over all ranks
    communication_seconds: float | None = None  # within step_seconds
    losses: list[float] = field(default_factory=list)


class RunRecord:
    """The record of one job; every rank has one, rank 0's is written.

    Attributes:
        path: the file to write, if any.
        dtype: the type that the job computes in, such as "bfloat16".
        optimizations: what was done to the model; the first entry is "ipex" or "native".
        training: what a training loop has measured.
        tokens_per_sample: for the rate in tokens, where samples have a fixed length.
        results: a recipe's metrics, a sample of what the model does, files written.
        gradients: how they are reduced; see `gradients.describe`.
        network: over which interface and address of rank 0's host the ranks have met; libfabric's provider is added.
    """

    def __init__(self, world: World, backend: Backend, pinning: list[dict[str, Any]], restarts: int) -> None:
        self.path: Path | None = None
        self.dtype: str | None = None
        self.optimizations: list[str] = []
        self.training = Training()
        self.tokens_per_sample: int | None = None
        self.results: dict[str, Any] = {}
        self.gradients: dict[str, Any] = {}
        self.network: dict[str, str | None] = {}
        self._world = world
        self._backend = backend
        self._pinning = pinning
        self._restarts = restarts

    def begin(self, path: Path | None) -> None:
        """Write to `path`, the file that the user named, from now on."""
        self.path = path
        self.write("running")

    def default_path(self, path: Path) -> None:
        """Where to write if the user named no file. A killed job leaves a record that says "running"."""
        if self.path is None:
            self.path = path
        self.write("running")

    def observed(self, rank: int, found: dict[str, Any]) -> None:
        """Add to a rank's pinning what was seen of it while it ran."""
        self._pinning[rank].update(found)

    def write(self, exit: Exit) -> None:
        """Write the file, on rank 0 and if there is one. Readers see the old or the new one, never a part."""
        if self._world.rank != 0 or self.path is None:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.as_dict(exit), indent=2) + "\n", encoding="utf-8")
            temporary.replace(self.path)
        except OSError as error:
            if exit != "failed":
                raise
            say(f"the run record was not written: {error}")  # perhaps the full disk that ends the job: end it must

    def as_dict(self, exit: Exit) -> dict[str, Any]:
        """The record's fields, in the order in which a reader wants them."""
        training, world, backend = self.training, self._world, self._backend
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
            "transport": backend.transport(),
            "network": {**self.network, "provider": backend.provider()},
            "dtype": self.dtype,
            "optimizations": self.optimizations,
            "gradients": self.gradients or None,
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
            "restarts": self._restarts,
            "exit": exit,
        }
        details = backend.details()
        if details:
            fields["details"] = details
        if self.results:
            fields["results"] = self.results
        return fields


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


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
