"""Measure with how many ranks this machine trains fastest (`cpudist plan --measure`)."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cpudist.console import number_of, say
from cpudist.errors import UserError
from cpudist.waiting import poll

_SCRIPT_SECONDS = 180.0  # With the user's script: limit for the start and the steps of each number of ranks.
_MODEL_SECONDS = 110.0  # With the benchmarks' model: limit for all numbers of ranks, so the command ends in 2 minutes.
_END_SECONDS = 60.0
_BUSY_SECONDS, _BUSY_PERCENT = 0.5, 20.0  # If other programs use more CPU time, the figures are useless.
_WORSE = 0.9  # Below this share of the best speed, more ranks are not tried.


class StepsTimedOut(UserError):
    """The job runs, but its steps take too long to be timed."""


@dataclass(frozen=True)
class Measured:
    """Figures of a training on `ranks` ranks, from the run record of rank 0."""

    ranks: int
    record: Mapping[str, Any]

    @property
    def threads(self) -> int:
        return min(int(rank["omp_threads"]) for rank in self.record["pinning"])

    @property
    def batches(self) -> float:
        """Batches per second of all ranks together."""
        return self.ranks / float(self.record["step_seconds"]["median"])

    @property
    def memory(self) -> int:
        """Memory of rank 0 in bytes."""
        return int(self.record["memory"])


def measure(most: int, script: Sequence[str]) -> Iterator[Measured]:
    """Measure 1, 2, 4, … ranks, up to `most`; stop if more ranks are slower, or if memory or time may not suffice.

    `script` is the user's script with its arguments; if it is empty, the ranks train the benchmarks' model. Steps that
    cannot be measured are a UserError, with the end of the ranks' output.
    """
    if (busy := psutil.cpu_percent(_BUSY_SECONDS)) > _BUSY_PERCENT:
        say(f"warning: other programs use {busy:.0f} % of the CPUs now; measure on a quiet machine")
    ranks, best, end = 1, 0.0, time.monotonic() + _MODEL_SECONDS
    while ranks <= most:
        try:
            found = one(ranks, script, _SCRIPT_SECONDS if script else end - time.monotonic())
        except StepsTimedOut:
            if ranks == 1:
                raise
            say(f"{ranks} ranks are left out: their steps were not timed within the limit")
            return
        yield found
        best = max(best, found.batches)
        if found.batches < _WORSE * best or 2 * ranks * found.memory > psutil.virtual_memory().available:
            return
        ranks *= 2


def one(ranks: int, script: Sequence[str], limit: float = _SCRIPT_SECONDS) -> Measured:
    """Measure a training on `ranks` ranks within `limit` seconds; raise the errors of `measure`."""
    with tempfile.TemporaryDirectory(prefix="cpudist-measure-") as folder:
        file = Path(folder, "record.json")
        with Path(folder, "output").open("wb+") as output:
            program = ["-m", "cpudist.bench.rank_steps", str(file), *script]
            command = [sys.executable, "-P", "-m", "cpudist", "launch", "--nproc", str(ranks), "--", *program]
            job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                ended = poll(lambda: job.poll() is not None or file.exists(), limit)
            finally:
                _end(job)
            if not file.exists():
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines()[-30:]
                why = "a script must make optimizer steps for 10 s" if script else "measure on a quiet machine"
                error = UserError if ended else StepsTimedOut
                raise error("\n".join([f"no steps of {number_of(ranks, 'rank')} could be timed: {why}", *lines]))
        return Measured(ranks, json.loads(file.read_text()))


def _end(job: subprocess.Popen[bytes]) -> None:
    """End the job as Ctrl-C does, so that `cpudist launch` leaves no process behind."""
    job.send_signal(signal.SIGINT)
    try:
        job.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        job.kill()  # its node agents then kill the ranks
        job.wait()
