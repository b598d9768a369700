"""Start real jobs from tests, with a time limit, and leave no process behind.

Intel MPI's `mpirun` is a shell wrapper: killing it leaves Hydra and all ranks running, and Hydra's proxies may leave
the session as well. So every job gets a unique variable in its environment, and the processes with it are the job's.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cpudist.topology.identity import free_port
from cpudist.waiting import poll

BIN = Path(sys.prefix) / "bin"
_MARK = "CPUDIST_TEST_JOB"
_SHARED = Path("/dev/shm")
_LEAVE_SECONDS = 10.0  # how long processes may outlive their command

# What rank 0 of cpudist-train says, where there are others.
STARTED = r"cpudist: \d+ ranks on .+, \w+( over [\w ]+)?, started in [\d.:]+( s)?\n"
STARTING = r"cpudist: (checking|connecting|starting on) .*\n"  # what `cpudist launch` says where that takes two seconds
COMPLETED = r"cpudist: completed after [\d.:]+( s)?(, \d+ steps)?(; .+)?\n"
# What ranks may say on a machine that is busy with other tests: waits of 10 seconds, and a rank that is slow there.
WAITING = r"cpudist: (.+, for at most [\d.]+ s|waiting for \d+ s of .+)\n"
SLOW = r"cpudist: rank \d+ \(.+\) makes the others wait: .+\n"

# Variables that jobs do not inherit: those of a launcher that runs the tests, and the one that conftest.py sets.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "USE_TORCH_XLA")

_SIGNALLED = """
import os, subprocess, sys, time
process = subprocess.Popen(sys.argv[3:])
while not os.path.exists(sys.argv[2]) and process.poll() is None:
    time.sleep(0.05)
process.send_signal(int(sys.argv[1]))
sys.exit(process.wait())
"""


@dataclass(frozen=True)
class Result:
    """How a job ended, with a negative `returncode` for a signal."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Exit status and everything the job wrote, for the message of an assertion."""
        return f"exit status {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    @property
    def report(self) -> str:
        """Standard error without the lines that say that the job starts, has started, and has completed."""
        return re.sub(f"{STARTING}|{STARTED}|{WAITING}|{SLOW}|{COMPLETED}", "", self.stderr)


def run(
    command: list[str], timeout: float, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> Result:
    """Run a command to its end, with the variables `env` added to this process's.

    Raises:
        AssertionError: the job did not end within `timeout` seconds, or left processes behind. They are killed.
    """
    mark = uuid.uuid4().hex
    variables = {**environment(env), _MARK: mark}

    # Files, not pipes: a process that is left behind and holds a pipe open would block reading.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
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
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout)
            expired = process.poll() is None
        finally:
            if process.poll() is not None:
                poll(lambda: not _members(mark), _LEAVE_SECONDS)
            if left := list(_members(mark).values()):
                kill_all(lambda: _members(mark), _LEAVE_SECONDS)
            process.wait(_LEAVE_SECONDS)  # which no signal ends where a file system hangs
        stdout.seek(0)
        stderr.seek(0)
        result = Result(process.returncode, stdout.read(), stderr.read())

    assert not expired, f"{command} did not end within {timeout} s\n{result.output}"
    assert not left, f"{command} left processes behind: {left}\n{result.output}"
    return result


def kill_all(members: Callable[[], Iterable[int]], seconds: float) -> bool:
    """Kill processes repeatedly, because one may fork meanwhile; return whether none is left."""

    def none_left() -> bool:
        for pid in (pids := list(members())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    return poll(none_left, seconds)


def completed(
    command: list[str], timeout: float, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> Result:
    """Run a command that must end with status 0; arguments as for `run`."""
    result = run(command, timeout, env, cwd)
    assert result.returncode == 0, result.output
    return result


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a job: this process's, without those that make it a rank, and `env`."""
    variables = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    # mpirun looks for its mpiexec.hydra on PATH, and would take that of a Debian mpich.
    variables["PATH"] = f"{BIN}{os.pathsep}{variables.get('PATH', os.defpath)}"
    variables["CPUDIST_RUNS"] = ""  # jobs leave no record unasked
    return {**variables, **(env or {})}


def mpirun(n: int, *args: str) -> list[str]:
    return [str(BIN / "mpirun"), "-n", str(n), *args]


def torchrun(n: int, *args: str) -> list[str]:
    """Return the command that runs `args` (a script, or -m and a module) on `n` ranks under torchrun."""
    return [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={n}", *args]


def train(*args: str) -> list[str]:
    return [str(BIN / "cpudist-train"), *args]


def launch(*args: str) -> list[str]:
    return [str(BIN / "cpudist"), "launch", *args]


def by_hand(command: list[str]) -> list[str]:
    """Return the command that runs two ranks without a launcher, and prints their exit statuses, rank 1's first."""
    start = f"""
        export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}
        RANK=0 {shlex.join(command)} & other=$!
        RANK=1 {shlex.join(command)}; one=$?
        wait $other; other=$?
        echo $one $other; exit $((one || other))
    """
    return ["bash", "-c", start]


def signalled(number: int, when: Path, command: list[str]) -> list[str]:
    """Return the command that runs `command` and sends it a signal as soon as the file `when` is there."""
    return [sys.executable, "-c", _SIGNALLED, str(number), str(when), *command]


def orphans() -> set[str]:
    """Return the files in /dev/shm that no process has mapped or open.

    Without Intel MPI's: its library leaves one of a few hundred bytes behind where a rank dies while MPI starts.
    """
    names = {path.name for path in _SHARED.iterdir() if not path.name.startswith("Intel_MPI_")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            used = (process / "maps").read_text()
            used += "".join(os.readlink(entry) + "\n" for entry in (process / "fd").iterdir())
        except OSError:  # it ended meanwhile, or is not ours
            continue
        names -= {name for name in names if f"{_SHARED}/{name}\n" in used}
    return names


def _members(mark: str) -> dict[int, str]:
    """Return the running processes of a job: process id -> command line."""
    members = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            if process.environ().get(_MARK) == mark:
                members[process.pid] = " ".join(process.cmdline())
    return members
