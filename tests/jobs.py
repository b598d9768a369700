"""Start real jobs from tests, bounded, and leave nothing behind.

Intel MPI's `mpirun` is a shell wrapper: killing it leaves Hydra and all ranks running, and Hydra's proxies
may leave the session as well. So every job carries a unique mark in its environment, and whoever carries it
in /proc is of that job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.prefix) / "bin"
_MARK = "CPUDIST_TEST_JOB"
_LEAVE_SECONDS = 10.0  # what processes get to be gone by themselves after the command has ended

# A job must not take over the rank of a test run that is itself under a launcher, and `-m pytest` may set
# these. The last one stands in conftest.py; a job must do without.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "USE_TORCH_XLA")


@dataclass(frozen=True)
class Result:
    """How a job ended and what it wrote; `seconds` is its wall time."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        """Everything the job wrote, for the message of an assertion."""
        return f"exit status {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def run(
    command: list[str], timeout: float, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> Result:
    """Run `command` to its end. Past `timeout` the whole job is killed and the test fails, with its output.

    `env` adds to this process's environment. Processes that the job leaves behind are killed and fail the
    test too.
    """
    mark = uuid.uuid4().hex
    variables = {**environment(env), _MARK: mark}

    # Files, not pipes: a leftover that holds a pipe open would keep us reading for ever.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=variables,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
            expired = False
        except subprocess.TimeoutExpired:
            expired = True
        finally:
            seconds = time.monotonic() - start
            left = [] if process.poll() is None else _wait_until_gone(mark)
            _kill(mark, process)
        stdout.seek(0)
        stderr.seek(0)
        result = Result(process.returncode, stdout.read(), stderr.read(), seconds)

    assert not expired, f"{command} did not end within {timeout} s\n{result.output}"
    assert not left, f"{command} left processes behind: {left}\n{result.output}"
    return result


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a job gets: this process's, without those that make it a rank, and `env`."""
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    # mpirun looks for its mpiexec.hydra on PATH, and would take that of a Debian mpich.
    variables["PATH"] = f"{BIN}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return {**variables, **(env or {})}


def mpirun(n: int, *args: str) -> list[str]:
    """The command that runs `args` on `n` ranks under this environment's own mpirun."""
    return [str(BIN / "mpirun"), "-n", str(n), *args]


def torchrun(n: int, *args: str) -> list[str]:
    """The command that runs `args` (a script, or -m and a module) on `n` ranks under torchrun."""
    return [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={n}", *args]


def train(*args: str) -> list[str]:
    """The command `cpudist-train` of this environment."""
    return [str(BIN / "cpudist-train"), *args]


def _members(mark: str) -> dict[int, str]:
    """The living processes of a job: process id -> command line."""
    wanted = f"{_MARK}={mark}".encode()
    members = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                members[int(entry.name)] = line.strip()
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return members


def _wait_until_gone(mark: str) -> list[str]:
    """Give the job's processes a moment to end; the command lines of those that did not."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (members := _members(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(members.values())


def _kill(mark: str, process: subprocess.Popen[bytes]) -> None:
    """Kill everything that carries the mark; again, since a process may fork while we look."""
    for _ in range(20):
        members = _members(mark)
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not members:
            break
        time.sleep(0.05)
    process.wait()
