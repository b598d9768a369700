"""The run record: a JSON file about the job's hosts, speed and end, which rank 0 writes.

Its fields are public (docs/reference.md). Each part of cpudist sets some of them: the job sets its world, `optimize`
its optimizations, and the step timer the steps. Unknown fields are null, such as the loss of a script that logs none.

Under `cpudist-train`, rank 0 of several ranks also prints a line at the job's start and one at its end.
"""

import json
import math
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from cpudist.console import duration, names_of, number_of, option, say
from cpudist.observability import product_speed
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.rank_table import waiting
from cpudist.observability.summary import RECORD
from cpudist.observability.training_figures import NEWEST, Training
from cpudist.processes.attempt import EARLIER_SECONDS
from cpudist.processes.procfs import own_age
from cpudist.trust import new_file, without_secrets
from cpudist.version import __version__
from cpudist.world import corrected_variables

_TOLD = 0.05  # Smallest straggler delay, as a share of the job's time, that the job's last line reports.
_LOSSES = 200  # Most losses in the record, for a curve.

Exit = Literal["running", "completed", "interrupted", "failed"]


class RunRecord(Observer):
    """The record of one job. Every rank has a `RunRecord`, but only rank 0 writes it to a file."""

    otherwise: ClassVar[dict[str, object]] = {"newest": {}, "log": {}, "figures": {}, "speeds": {}}

    def __init__(self, job: ObservedJob) -> None:
        self.path: Path | None = None  # the file to write; None: it is chosen at the end
        self._results: Path | None = None
        self._run: Path | None = None
        self.dtype: str | None = None  # the type that the job computes in, such as "bfloat16"
        self.optimizations: list[str] = []  # the optimizations of the model; the first is "ipex" or "native"
        # Measurements of the last Trainer, or of a script's own training loop.
        self.training = self._own_loop = Training(job.counter)
        self.compression: str | None = None  # the compression of gradients between hosts; None if no model was wrapped
        self.gradient_times: dict[str, Any] | None = None  # when the gradients of a step are complete
        # The address of rank 0's host at which the ranks found the store, and its network interface.
        self.network: dict[str, str | None] = {}
        # The communication wait and straggler delay of each rank; see `rank_table.waiting`.
        self.waiting: list[dict[str, Any]] = []
        self.checkpoint: str | None = None  # the newest saved checkpoint
        # On rank 0 the newest change of the shares: step, shares and the ranks' speeds; None: no change so far.
        self.shares: dict[str, Any] | None = None
        self.compared: dict[str, float] = {}  # figures of the newest comparison of the ranks' paces, on rank 0
        # On rank 0 the reported ranks, and the line of code in which each of them was most often seen.
        self.stragglers: dict[int, str] = {}
        self._job = job
        self._pinning: list[dict[str, Any]] = [
            {"rank": rank, "host": member.host, "cpus": list(member.cpus), "omp_threads": member.threads}
            for rank, member in enumerate(job.members)
        ]
        self._attempts: list[list[int]] | None = None  # earlier attempts in the file; None: not read yet
        self._logged = 0  # steps at the last `log`
        self._tells = False  # whether rank 0 reports the start and the end of the job

    def step(self, optimizer: Any) -> None:
        """Time a step of a script's own loop; the first is a warm-up. `StepTimer` times the steps of Trainer."""
        if self.training is not self._own_loop:
            return
        communicated = self._job.backend.communication_seconds()
        if self.training.steps > 1:
            self.training.end_step(communicated)
        else:
            self.training.begin_step(communicated)

    def begin(self) -> None:
        """Report that the job has started; `write` will report how it ends."""
        world, carriers = self._job.world, self._job.backend.carriers()
        self._tells = world.rank == 0 and world.size > 1 and world.launcher != "notebook"
        if self._tells:
            backend = f"{world.backend} over {carriers}" if carriers else world.backend
            say(f"{world.size} ranks on {names_of(world.hosts)}, {backend}, started in {duration(own_age())}")

    def write_to(self, path: Path) -> None:
        """Write to `path`, which the user has named, now and at the end; a killed job's record still says "running"."""
        self.path = path.absolute()  # the script may change the working directory
        self.write("running")

    def name_run(self, program: str, runs: str = "") -> None:
        """At the end, write into a new folder of $CPUDIST_RUNS or `runs`, unless another place is set."""
        runs = os.environ.get("CPUDIST_RUNS", runs)
        if runs and program:
            name = os.path.basename(program).removesuffix(".py")
            self._run = Path(runs, f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}").absolute()

    def leave_in(self, folder: Path) -> None:
        """At the job's end write `cpudist.json` into `folder`, if the user named no file and `folder` has results.

        A folder without results stays empty: Hugging Face's scripts refuse an output folder that is not empty, so the
        job could not start again.
        """
        self._results = folder

    def note_waiting(self) -> None:
        """Note each rank's communication wait and straggler delay, at the end of the job on rank 0."""
        self.waiting = waiting(self._job.statuses())

    def log(self, loss: float | None, counts: Mapping[str, int]) -> dict[str, float]:
        """Add the loss, and the "samples" and "tokens" of this rank since the last call; return all figures."""
        training, steps = self.training, self.training.steps
        if loss is not None:
            training.losses.append(loss)
        for name, count in counts.items():
            if count:
                training.add(name, self._job.balance.of_all_ranks(count))
        since, self._logged = max(steps - self._logged, 1), steps
        return {**({} if loss is None else {"loss": loss}), **self.figures(since)}

    def figures(self, steps: int) -> dict[str, float]:
        """Return the figures of the last `steps` steps for a reporter; none before the speed is known."""
        speeds = {name: rate for name, rate in self.speeds(steps).items() if rate}
        figures = {**speeds, **self.compared} if speeds else {}
        return {f"cpudist_{name}": value for name, value in figures.items()}

    def speeds(self, steps: int = NEWEST) -> dict[str, float | None]:
        """Return the speeds of all ranks in the last `steps` steps, by field of the record."""
        tokens, share = self.training.per_second("tokens", steps), self.training.product_share
        return {
            "samples_per_second": _rounded(self.training.per_second("samples", steps)),
            product_speed.SPEED: _rounded(tokens),
            product_speed.OF_CORE: _rounded(tokens and tokens / sum(member.threads for member in self._job.members)),
            product_speed.SHARE: _rounded(tokens and share and tokens * share),
        }

    def note_model(self, model: torch.nn.Module | None) -> None:
        """Note the model's number format, and the share of the measured product speed that a token per second takes."""
        if self.dtype is None and (parameter := next(iter(model.parameters()), None) if model else None) is not None:
            self.dtype = str(parameter.dtype).removeprefix("torch.")
        speed = product_speed.of_ranks(self._job.members, self.dtype) if model else None
        self.training.product_share = product_speed.of_token(model) / speed if model and speed else None

    def newest(self) -> dict[str, Any]:
        """Return the checkpoint, the losses and the speeds so far, for `cpudist top`."""
        return {"checkpoint": self.checkpoint, "losses": self.training.losses[-200:], **self.speeds()}

    def write(self, exit: Exit) -> None:
        """Write the file on rank 0, and report how the job has ended; failures are reported elsewhere."""
        if self._job.world.rank:
            return
        where = ""
        try:
            self.path = self.path or self._choose_path()
            if self.path is not None:
                self._write_file(self.path, exit)
                where = f"; record in {min(str(self.path), os.path.relpath(self.path), key=len)}"
            elif self._run is not None:
                where = "; no record, since the job made no optimizer step"
        except OSError as error:
            elsewhere = option("record")  # only print this: a missing record must not fail the job
            say(f"the run record was not written: {error}; {elsewhere} names another place")
        if self._tells and exit in ("completed", "interrupted"):
            steps = f", {number_of(self.training.steps, 'step')}" if self.training.steps else ""
            seconds = own_age() + float(os.environ.get(EARLIER_SECONDS, 0))  # of all attempts
            speed = f", {text}" if (text := product_speed.text(self.speeds())) else ""
            say(f"{exit} after {duration(seconds)}{steps}{speed}{self._slowest()}{where}")

    def _slowest(self) -> str:
        """Return which of the reported ranks has delayed the others most, as a part of a sentence."""
        rows = [row for row in self.waiting if row["rank"] in self.stragglers and row["delays"] >= _TOLD]
        if not rows:
            return ""
        row = max(rows, key=lambda row: float(row["delays"]))
        place = self.stragglers[row["rank"]]
        made = f"; rank {row['rank']} on {row['host']} made the others wait {100 * row['delays']:.0f} % of the time"
        return f"{made}, mostly in {place}" if place else made

    def _choose_path(self) -> Path | None:
        """Return the file in the folder of the results, or in a new folder.

        A job without an optimizer step gets no new folder: it is a check, or has failed because of a wrong option.
        """
        if self._results is not None and any(self._results.glob("*")):
            return self._results / RECORD
        if self._run is None or not self.training.steps:
            return None
        self._tells = True  # also in a job of one process, so that the user learns of the folder
        return self._run / RECORD

    def _write_file(self, path: Path, exit: Exit) -> None:
        """Replace the file atomically: readers see the old or the new file."""
        fields = self.as_dict(exit)
        if self._attempts is None:  # read only once: the file then gets this attempt, too
            self._attempts = []
            with suppress(OSError, ValueError, KeyError):
                if self._job.restarts and path.is_file():  # reading from a pipe would block
                    self._attempts = json.loads(path.read_text(encoding="utf-8"))["attempts"][: self._job.restarts]
        fields["attempts"][:0] = self._attempts
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(fields, indent=2) + "\n"
        if path.exists() and not path.is_file():  # /dev/null is not replaced
            path.write_text(text, encoding="utf-8")
            return
        written = path.with_name(f".{path.name}.{os.getpid()}")
        written.unlink(missing_ok=True)  # left by a process that was killed
        with new_file(written) as file:
            file.write(text)
        written.replace(path)

    def as_dict(self, exit: Exit) -> dict[str, Any]:
        """Return the record's fields, in the order of the file."""
        training, world, backend = self.training, self._job.world, self._job.backend
        seconds, losses = training.step_seconds(), training.losses or [math.nan]
        fields = {
            "cpudist": __version__,
            "torch": torch.__version__,
            "command": without_secrets([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
            "launcher": world.launcher,
            "corrected_variables": corrected_variables(self._job.members, world.launcher),
            "hosts": list(world.hosts),
            "world_size": world.size,
            "backend": world.backend,
            "transport": backend.transport(),
            "network": self.network,
            "dtype": self.dtype,
            "optimizations": self.optimizations,
            "gradients": self._gradients(),
            "gradient_times": self.gradient_times,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "pinning": self._pinning,
            "steps": training.steps or None,
            **self.speeds(),
            "step_seconds": {"median": _quantile(seconds, 0.5), "p95": _quantile(seconds, 0.95)},
            "communication_share": _rounded(training.communication_share()),
            "loss": {"first": _rounded(losses[0]), "last": _rounded(losses[-1])},
            "losses": [_rounded(loss) for loss in training.losses[:: len(losses) // _LOSSES + 1]],
            "waiting": self.waiting or None,
            "shares": self.shares,
            "restarts": self._job.restarts,
            "checkpoint": self.checkpoint,
            "attempts": [[training.first, training.steps]],
            "exit": exit,
        }
        if details := backend.details():
            fields["details"] = details
        return fields

    def _gradients(self) -> dict[str, Any] | None:
        if self.compression is None:
            return None
        before, after = self._job.backend.compressed_bytes() or (None, None)
        return {"compress": self.compression, "bytes": before, "compressed_bytes": after}


def _quantile(values: Sequence[float], share: float) -> float | None:
    return _rounded(float(np.quantile(values, share))) if values else None


def _rounded(value: float | None) -> float | None:
    """Round to six digits; None for infinity and NaN, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
