"""Start a job from outside, as a user would, and see it to its end; nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil

from cpudist import waiting
from cpudist.console import one_line

_MARK = "CPUDIST_BENCH_JOB"
_END_SECONDS = 10.0  # for killed processes to be gone
_REASON = ("Error:", "Exception:", "error:", "cpudist: ", "cpudist-train: ")
_REASON_CHARACTERS = 200


@dataclass(frozen=True)
class End:
    """How a job ended: its exit status, None where it was out of time; what it wrote; its whole time in seconds."""

    status: int | None
    output: str
    seconds: float

    def reason(self) -> str:
        """Why it failed, as one line: the first that names an error, or the last."""
        if self.status is None:
            return f"did not end within {self.seconds:.0f} s"
        lines = [one_line(line) for line in self.output.splitlines() if line.strip()]
        telling = [line for line in lines if any(words in line for words in _REASON)] or lines[-1:]
        return f"exit status {self.status}: {telling[0] if telling else 'it wrote nothing'}"[:_REASON_CHARACTERS]


def run(command: Sequence[str], variables: Mapping[str, str], timeout: float) -> End:
    """Run `command` with exactly these environment variables, for `timeout` seconds at most.

    Every process that it has started ends with it: a launcher's own helpers leave its session, so all are known by a
    variable in their environment.

    Raises:
        OSError: it cannot be started.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        begin = time.monotonic()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**variables, _MARK: mark},
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            seconds = time.monotonic() - begin
            waiting.poll(lambda: not _kill(mark) and process.poll() is not None, _END_SECONDS)
        output.seek(0)
        return End(status, output.read(), seconds)


def _kill(mark: str) -> int:
    """Kill the job's processes; returns how many there still were."""
    found = list(_processes(mark))
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return len(found)


def _processes(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                yield process
        except (psutil.Error, OSError):  # it has ended, or is somebody else's
            continue
