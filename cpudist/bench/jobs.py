"""Whole jobs compared: one script of Trainer, with the same data and seed, started in several ways.

Each job is started from outside, as a user does it, and runs to its end. The jobs take turns. What counts is the speed
that Trainer reports, which leaves start-up out; the whole time is shown beside it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpudist.bench import commands, trainer_script, workload
from cpudist.bench.commands import RANKS, Command
from cpudist.bench.report import rate_cell, ratio_cell, table, time_cell
from cpudist.bench.timing import Ratio, Timings, ratio

_DTYPE_FLAGS: dict[str, tuple[str, ...]] = {"float32": (), "bfloat16": ("--bf16",)}
_OFFLINE = {"HF_HUB_OFFLINE": "1"}  # all files are in the folder
_SAME_LOSS = 0.01  # number formats and the order of additions change the loss by less, in so few steps


@dataclass(frozen=True)
class Schedule:
    """How much is trained.

    Attributes:
        rounds: runs of each job.
        steps: training steps of a job.
        samples: per rank and step.
        tokens: per sample.
        dtypes: number formats to train in.
        timeout: seconds for each job.
    """

    rounds: int
    steps: int
    samples: int
    tokens: int
    dtypes: tuple[str, ...]
    timeout: float

    def flags(self, dtype: str, folder: Path) -> list[str]:
        """Return the flags that the script gets from all commands."""
        return [
            *("--output_dir", str(folder / "out"), "--save_strategy", "no", "--report_to", "none"),
            *("--max_steps", str(self.steps), "--per_device_train_batch_size", str(self.samples)),
            *("--logging_steps", "1", "--disable_tqdm", "true", "--seed", "0", *_DTYPE_FLAGS[dtype]),
        ]

    def describe(self) -> str:
        """Return it in words, for the head of the table."""
        return f"{self.samples} x {self.tokens} tokens per rank, {self.steps} steps"


_FULL = Schedule(rounds=3, steps=8, samples=8, tokens=128, dtypes=("float32", "bfloat16"), timeout=600)
_QUICK = Schedule(rounds=1, steps=2, samples=1, tokens=32, dtypes=("float32",), timeout=120)


@dataclass(frozen=True)
class Trained:
    """What one job reported: Trainer's train_samples_per_second, its whole time in seconds, the loss of each step."""

    samples_per_second: float
    seconds: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One way to start the script, in one number format: what each round reported, or why there is no result."""

    name: str
    dtype: str
    rounds: tuple[Trained, ...] = ()
    missing: str = ""

    def per_sample(self) -> Timings:
        """Return the seconds for each sample, by round."""
        return Timings(tuple((1 / one.samples_per_second,) for one in self.rounds))

    def whole(self) -> Timings:
        """Return the jobs' whole time, by round."""
        return Timings(tuple((one.seconds,) for one in self.rounds))

    @property
    def loss(self) -> float:
        """Loss of the last step. It is the same in every round, up to the order of additions."""
        return self.rounds[0].losses[-1]


@dataclass(frozen=True)
class JobTimes:
    """All that one run measured; `workload` in words."""

    workload: str
    rows: tuple[Row, ...]

    def table(self) -> str:
        """Return one block of lines for each number format."""
        return "\n\n".join(self._block(rows) for rows in self.by_dtype().values())

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [self._as_dict(row) for row in self.rows]

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars of each number format."""
        return {
            f"whole jobs, {dtype}, in seconds per sample": {row.name: row.per_sample() for row in rows if row.rounds}
            for dtype, rows in self.by_dtype().items()
        }

    def by_dtype(self) -> dict[str, list[Row]]:
        """Return the rows of each number format; the first one is what the others are compared with."""
        dtypes = dict.fromkeys(row.dtype for row in self.rows)
        return {dtype: [row for row in self.rows if row.dtype == dtype] for dtype in dtypes}

    def speed_up(self, row: Row) -> Ratio | None:
        """Return samples per second over those of the number format's first row, round by round."""
        first = self.by_dtype()[row.dtype][0]
        return None if first.missing or row.missing else ratio(first.per_sample(), row.per_sample())

    def other_losses(self) -> list[str]:
        """Return a line for each row whose loss differs from that of its number format's first row."""
        found = []
        for first, *others in self.by_dtype().values():
            for row in others:
                if not first.missing and not row.missing and abs(row.loss / first.loss - 1) > _SAME_LOSS:
                    found.append(f"{row.name}, {row.dtype}: loss {row.loss:.4f}, of {first.name} {first.loss:.4f}")
        return found

    def _block(self, rows: Sequence[Row]) -> str:
        head = ["", "samples/s", f"times {rows[0].name}", "whole job", "loss"]
        lines = table(head, [self._cells(row) for row in rows if not row.missing])
        return "\n".join(
            [f"{self.workload}, {rows[0].dtype}", lines, *(f"{row.name}: {row.missing}" for row in rows if row.missing)]
        )

    def _cells(self, row: Row) -> list[str]:
        speed, seconds = rate_cell(row.per_sample()), time_cell(row.whole())
        return [row.name, speed, ratio_cell(self.speed_up(row)), seconds, f"{row.loss:.4f}"]

    def _as_dict(self, row: Row) -> dict[str, Any]:
        entry: dict[str, Any] = {"job": row.name, "dtype": row.dtype}
        if row.missing:
            return {**entry, "missing": row.missing}
        speed_up = self.speed_up(row)
        return {
            **entry,
            "samples_per_second": [one.samples_per_second for one in row.rounds],
            "whole_seconds": row.whole().as_dict(),
            "losses": [list(one.losses) for one in row.rounds],
            "times_the_first": speed_up and speed_up.as_dict(),
        }


def run(say: Callable[[str], None], quick: bool = False) -> JobTimes:
    """Run all jobs, one after the other in every round.

    Args:
        say: is called with the progress, in words.
        quick: measure little, as a smoke test.
    """
    schedule = _QUICK if quick else _FULL
    with tempfile.TemporaryDirectory(prefix="cpudist-bench-") as name:
        folder = Path(name)
        model = workload.write_gpt2(folder, schedule.tokens)
        say(f"{model}, {schedule.describe()}")
        rows = {
            (command.name, dtype): (command, Row(command.name, dtype, missing=command.missing))
            for dtype in schedule.dtypes
            for command in commands.find(folder)
            if not (quick and command.varies)
        }
        for number in range(1, schedule.rounds + 1):
            for (name, dtype), (command, row) in rows.items():
                if not row.missing:
                    say(f"round {number} of {schedule.rounds}: {name}, {dtype}")
                    rows[name, dtype] = command, _another(row, _train(command, schedule, dtype, folder))
    return JobTimes(f"{model}, {schedule.describe()}", tuple(row for _, row in rows.values()))


def _another(row: Row, found: Trained | str) -> Row:
    """Return `row` with one more round; without any where the job has failed."""
    if isinstance(found, str):
        return replace(row, rounds=(), missing=found)
    return replace(row, rounds=(*row.rounds, found))


def _train(command: Command, schedule: Schedule, dtype: str, folder: Path) -> Trained | str:
    """Run one job; return what it reported, or why it failed."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    script = [str(trainer_script.__file__), str(folder), str(result), *schedule.flags(dtype, folder), *command.flags]
    variables = {**os.environ, **_OFFLINE, **command.variables}
    try:
        done = commands.run([*command.words, *script], variables, schedule.timeout)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if done.status != 0 or not result.exists():
        return done.reason()
    return read(json.loads(result.read_text(encoding="utf-8")), done.seconds)


def read(result: Mapping[str, Any], seconds: float) -> Trained | str:
    """Return what a job's script has written, or why it does not count: it did not train on all ranks."""
    if result["ranks"] != RANKS:
        return f"trained on {result['ranks']} rank instead of {RANKS}, without an error"
    return Trained(result["train_samples_per_second"], seconds, tuple(map(float, result["losses"])))
