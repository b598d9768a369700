"""Whole jobs compared: one script of Trainer, with the same data and seed, started in several ways.

Each is started from outside, as a user would, and runs to its end: by turns, so that a slow moment of the machine hits
all alike. What Trainer itself says is what counts, which leaves start-up out; the whole time stands beside it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.bench import corpus, launchers, start, table, trainer_script
from cpudist.bench.launchers import RANKS, Launcher
from cpudist.bench.timing import Ratio, Timings, ratio

_DTYPE_FLAGS: dict[str, tuple[str, ...]] = {"float32": (), "bfloat16": ("--bf16",)}
_OFFLINE = {"HF_HUB_OFFLINE": "1"}  # everything is in the folder, so nobody has to ask
_SAME_LOSS = 0.01  # number formats and the order of additions change it less, in so few steps


@dataclass(frozen=True)
class Course:
    """How much is trained: rounds of all jobs, each of so many steps of `samples` of `tokens` on every rank."""

    rounds: int
    steps: int
    samples: int
    tokens: int
    dtypes: tuple[str, ...]
    timeout: float

    def flags(self, dtype: str, folder: Path) -> list[str]:
        """What the script gets from all launchers."""
        return [
            *("--output_dir", str(folder / "out"), "--save_strategy", "no", "--report_to", "none"),
            *("--max_steps", str(self.steps), "--per_device_train_batch_size", str(self.samples)),
            *("--logging_steps", "1", "--disable_tqdm", "true", "--seed", "0", *_DTYPE_FLAGS[dtype]),
        ]

    def describe(self) -> str:
        """In words, for the head of the table."""
        return f"{self.samples} x {self.tokens} tokens per rank, {self.steps} steps"


_FULL = Course(rounds=3, steps=8, samples=8, tokens=128, dtypes=("float32", "bfloat16"), timeout=600)
_QUICK = Course(rounds=1, steps=2, samples=1, tokens=32, dtypes=("float32",), timeout=120)


@dataclass(frozen=True)
class Outcome:
    """What one job came to: Trainer's train_samples_per_second, the whole time, the loss of each step."""

    samples_per_second: float
    seconds: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One way to start the script, in one dtype: its outcome in each round, or why there is none."""

    name: str
    dtype: str
    outcomes: tuple[Outcome, ...] = ()
    missing: str = ""

    def per_sample(self) -> Timings:
        """Seconds for each sample, by round."""
        return Timings(tuple((1 / one.samples_per_second,) for one in self.outcomes))

    def whole(self) -> Timings:
        """The jobs' whole time, by round."""
        return Timings(tuple((one.seconds,) for one in self.outcomes))

    @property
    def loss(self) -> float:
        """That of the last step. It is the same in every round, as far as the order of additions is."""
        return self.outcomes[0].losses[-1]


@dataclass(frozen=True)
class JobTimes:
    """Everything that one run measured; `workload` in words."""

    workload: str
    rows: tuple[Row, ...]

    def table(self) -> str:
        """One block of lines per dtype."""
        return "\n\n".join(self._block(rows) for rows in self.by_dtype().values())

    def as_list(self) -> list[dict[str, Any]]:
        return [self._as_dict(row) for row in self.rows]

    def by_dtype(self) -> dict[str, list[Row]]:
        """The rows of each dtype; the first is what the others are compared with."""
        return {dtype: [row for row in self.rows if row.dtype == dtype] for dtype in dict.fromkeys(self._dtypes())}

    def speed_up(self, row: Row) -> Ratio | None:
        """How many times as many samples per second as in the dtype's first row, round by round."""
        first = self.by_dtype()[row.dtype][0]
        return None if first.missing or row.missing else ratio(first.per_sample(), row.per_sample())

    def other_losses(self) -> list[str]:
        """The rows whose loss ends elsewhere than that of their dtype's first row, in words."""
        found = []
        for first, *others in self.by_dtype().values():
            for row in others:
                if not first.missing and not row.missing and abs(row.loss / first.loss - 1) > _SAME_LOSS:
                    found.append(f"{row.name}, {row.dtype}: loss {row.loss:.4f}, of {first.name} {first.loss:.4f}")
        return found

    def _dtypes(self) -> list[str]:
        return [row.dtype for row in self.rows]

    def _block(self, rows: Sequence[Row]) -> str:
        head = ["", "samples/s", f"times {rows[0].name}", "whole job", "loss"]
        lines = table.render(head, [self._cells(row) for row in rows if not row.missing])
        return "\n".join(
            [f"{self.workload}, {rows[0].dtype}", lines, *(f"{row.name}: {row.missing}" for row in rows if row.missing)]
        )

    def _cells(self, row: Row) -> list[str]:
        speed, seconds = table.rate_cell(row.per_sample()), table.time_cell(row.whole())
        return [row.name, speed, table.ratio_cell(self.speed_up(row)), seconds, f"{row.loss:.4f}"]

    def _as_dict(self, row: Row) -> dict[str, Any]:
        entry: dict[str, Any] = {"job": row.name, "dtype": row.dtype}
        if row.missing:
            return {**entry, "missing": row.missing}
        speed_up = self.speed_up(row)
        return {
            **entry,
            "samples_per_second": [one.samples_per_second for one in row.outcomes],
            "whole_seconds": row.whole().as_dict(),
            "losses": [list(one.losses) for one in row.outcomes],
            "times_the_first": speed_up and speed_up.as_dict(),
        }


def run(say: Callable[[str], None], quick: bool = False) -> JobTimes:
    """Start all jobs, one after the other in every round. `say` is told how far it is."""
    course = _QUICK if quick else _FULL
    with tempfile.TemporaryDirectory(prefix="cpudist-bench-") as name:
        folder = Path(name)
        model = corpus.write(folder, course.steps * course.samples * RANKS, course.tokens)
        say(f"{model}, {course.describe()}")
        rows = {
            (launcher.name, dtype): (launcher, Row(launcher.name, dtype, missing=launcher.missing))
            for dtype in course.dtypes
            for launcher in launchers.find(folder)
            if not (quick and launcher.varies)
        }
        for number in range(1, course.rounds + 1):
            for (name, dtype), (launcher, row) in rows.items():
                if not row.missing:
                    say(f"round {number} of {course.rounds}: {name}, {dtype}")
                    rows[name, dtype] = launcher, _another(row, _outcome(launcher, course, dtype, folder))
    return JobTimes(f"{model}, {course.describe()}", tuple(row for _, row in rows.values()))


def _another(row: Row, outcome: Outcome | str) -> Row:
    """`row` with one more outcome; with none at all where the job has failed."""
    if isinstance(outcome, str):
        return Row(row.name, row.dtype, missing=outcome)
    return Row(row.name, row.dtype, (*row.outcomes, outcome))


def _outcome(launcher: Launcher, course: Course, dtype: str, folder: Path) -> Outcome | str:
    """Run one job; what it came to, or why it failed."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    script = [str(trainer_script.__file__), str(folder), str(result), *course.flags(dtype, folder), *launcher.flags]
    try:
        end = start.run([*launcher.words, *script], {**os.environ, **_OFFLINE, **launcher.variables}, course.timeout)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if end.status != 0 or not result.exists():
        return end.reason()
    return read(json.loads(result.read_text(encoding="utf-8")), end.seconds)


def read(result: Mapping[str, Any], seconds: float) -> Outcome | str:
    """What a job's script has written; a word on why that does not count where it did not train on all ranks."""
    if result["ranks"] != RANKS:
        return f"trained on {result['ranks']} rank instead of {RANKS}, without an error"
    return Outcome(result["train_samples_per_second"], seconds, tuple(map(float, result["losses"])))
