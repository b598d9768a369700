"""The run record: a JSON file by rank 0 about the job's hosts, speed and end.

Its fields are public (docs/reference.md). Each part of cpudist adds its fields: the job its world, `optimize` its
choice, the step timer the steps. Unknown fields are null, as in a script without Trainer.

Under `cpudist-train`, rank 0 also prints a line when several ranks have started, and one when they have ended.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from cpudist.console import duration, names_of, number_of, say
from cpudist.processes import own_age
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.world import RankInfo, World

_SECRET = re.compile(r"[-_](token|password|secret|key)$")

Exit = Literal["running", "completed", "interrupted", "failed"]


@dataclass
class Training:
    """A training loop's measurements on this rank. Seconds are of whole optimizer steps, including data loading."""

    steps: int = 0
    step_seconds: list[float] = field(default_factory=list)
    samples_per_step: int | None = None  # over all ranks
    communication_seconds: float | None = None  # within step_seconds
    losses: list[float] = field(default_factory=list)


class RunRecord:
    """The record of one job. Every rank has one; rank 0 writes its own.

    Attributes:
        path: the file to write; None: no file.
        dtype: the type that the job computes in, such as "bfloat16".
        optimizations: the optimisations of the model; the first is "ipex" or "native".
        training: a training loop's measurements.
        gradients: how gradients are reduced; see `note_gradients_of`.
        compression: the scheme in which they cross the network; None where no model was wrapped.
        embedding_rows: the tied embeddings whose part of the gradient crosses the network as rows.
        network: the interface and address of rank 0's host over which the ranks found the store.

    Args:
        members: all ranks, in rank order.
        restarts: how often the job has been restarted.
    """

    def __init__(self, world: World, backend: Backend, members: Sequence[RankInfo], restarts: int) -> None:
        self.path: Path | None = None
        self._results: Path | None = None
        self.dtype: str | None = None
        self.optimizations: list[str] = []
        self.training = Training()
        self.gradients: dict[str, Any] = {}
        self.compression: str | None = None
        self.embedding_rows: list[str] = []
        self.network: dict[str, str | None] = {}
        self._world = world
        self._backend = backend
        self._pinning: list[dict[str, Any]] = [
            {"rank": rank, "host": member.host, "cpus": list(member.cpus), "omp_threads": member.threads}
            for rank, member in enumerate(members)
        ]
        self._restarts = restarts
        self._tells = False  # whether rank 0 has said what has started, and will say how it ends

    def begin(self, path: Path | None) -> None:
        """Write to `path`, the file that the user named, from now on; None: no file. Say that the job has started.

        A killed job leaves a record that says "running".
        """
        self.path = path
        self.write("running")
        world, transport = self._world, self._backend.transport()
        self._tells = world.rank == 0 and world.size > 1 and world.launcher != "notebook"
        if self._tells:
            backend = f"{world.backend} over {transport}" if transport else world.backend
            say(f"{world.size} ranks on {names_of(world.hosts)}, {backend}, started in {duration(own_age())}")

    def leave_in(self, folder: Path) -> None:
        """At the job's end write `cpudist.json` into `folder`, if the user named no file and results are there.

        The record is never alone there. Hugging Face's scripts refuse an output folder that is not empty, so with a
        record alone in it the job could not start again.
        """
        self._results = folder

    def note_gradients_of(self, model: torch.nn.Module) -> None:
        """Note how the gradients of a wrapped model are reduced, at its first use: until then hooks may be added."""

        def note(model: torch.nn.Module, args: Any) -> None:
            self.gradients = _gradients(model)
            handle.remove()

        if _gradients(model):
            handle = model.register_forward_pre_hook(note)

    def write(self, exit: Exit) -> None:
        """Write the file on rank 0, and say how the job has ended; the report of a failure stays the last line.

        Readers see the old or the new file, never a part of one.

        Raises:
            OSError: it cannot be written, and the job has not failed.
        """
        if self.path is None and self._results is not None and any(self._results.glob("*")):
            self.path = self._results / "cpudist.json"
        if self._world.rank == 0 and self.path is not None:
            self._write_file(self.path, exit)
        if self._tells and exit in ("completed", "interrupted"):
            steps = f", {number_of(self.training.steps, 'step')}" if self.training.steps else ""
            where = f"; record in {self.path}" if self.path else ""
            say(f"{exit} after {duration(own_age())}{steps}{where}")

    def _write_file(self, path: Path, exit: Exit) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.as_dict(exit), indent=2) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            if exit != "failed":
                raise
            say(f"the run record was not written: {error}")  # a full disk must not block the end of a failed job

    def as_dict(self, exit: Exit) -> dict[str, Any]:
        """Return the record's fields, in the order of the file."""
        training, world, backend = self.training, self._world, self._backend
        seconds = training.step_seconds
        samples_per_second = None
        if seconds and training.samples_per_step is not None:
            samples_per_second = training.samples_per_step * len(seconds) / sum(seconds)
        fields = {
            "cpudist": __version__,
            "torch": torch.__version__,
            "command": _without_secrets([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
            "launcher": world.launcher,
            "hosts": list(world.hosts),
            "world_size": world.size,
            "backend": world.backend,
            "transport": backend.transport(),
            "network": self.network,
            "dtype": self.dtype,
            "optimizations": self.optimizations,
            "gradients": self._described_gradients() or None,
            "pinning": self._pinning,
            "steps": training.steps or None,
            "samples_per_second": _rounded(samples_per_second),
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
        return fields

    def _described_gradients(self) -> dict[str, Any]:
        if self.compression is None or not self.gradients:
            return self.gradients
        before, after = self._backend.compressed_bytes() or (None, None)
        compressed = {"compress": self.compression, "bytes": before, "compressed_bytes": after}
        rows = {"embedding_rows": self.embedding_rows} if self.embedding_rows else {}
        return {**self.gradients, **compressed, **rows}


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the smallest of `values` that at least a `fraction` of them (0 to 1) do not exceed."""
    return sorted(values)[max(math.ceil(fraction * len(values)) - 1, 0)]


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command's words, with *** for the values of options such as --hub_token."""
    shown = list(words)
    for number, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if _SECRET.search(name):
            if equals:
                shown[number] = f"{name}=***"
            else:
                shown[number + 1 : number + 2] = ["***"] * len(words[number + 1 : number + 2])
    return shown


def _step_seconds(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"median": None, "p95": None}
    return {"median": _rounded(statistics.median(seconds)), "p95": _rounded(percentile(seconds, 0.95))}


def _communication_share(training: Training) -> float | None:
    if training.communication_seconds is None or not training.step_seconds:
        return None
    return _rounded(min(training.communication_seconds / sum(training.step_seconds), 1.0))


def _rounded(value: float | None) -> float | None:
    """Round to six digits; None for infinity and NaN, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _gradients(model: torch.nn.Module) -> dict[str, Any]:
    """Return how gradients are reduced, by the names of DDP's options; empty for a model that is not wrapped."""
    if not isinstance(model, DistributedDataParallel):
        return {}
    hooks = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook, _ in model._comm_hooks]
    return {
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "static_graph": model.static_graph,
        "hook": hooks[-1] if hooks else None,
    }
