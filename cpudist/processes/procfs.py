"""Processes of this machine, read from /proc.

psutil is not used: a failing job reads processes when Python's file system may be gone (`supervision/abort.py`), and
the job needs start times in the kernel's ticks.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SSH_DAEMONS = ("sshd", "sshd-session")
_SHELLS = frozenset(("sh", "dash", "bash"))
_ENDED = "ZX"  # states of an ended process whose parent has not yet waited for it
_MOST_ANCESTORS = 64  # limits the walk, since process ids may be reused meanwhile


class Process(NamedTuple):
    """One process at one moment."""

    pid: int
    parent: int  # its parent's id
    start: int  # when it started, in the kernel's clock ticks since boot; `pid` and `start` identify a process
    name: str  # the name of its program, or of the script that a shell runs


def read(pid: int) -> Process | None:
    """Return the process with this id; None if there is none or it has ended."""
    try:
        # The name is in brackets and may contain any character: proc_pid_stat(5).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] in _ENDED:
            return None
        return Process(pid, int(fields[1]), int(fields[19]), _name(command_line(pid)))
    except OSError:
        return None


def read_all() -> dict[int, Process]:
    return {pid: process for pid in _all_ids() if (process := read(pid)) is not None}


def own_age() -> float:
    """Return how long this process has run, in seconds; exec does not reset it."""
    own = read(os.getpid())
    assert own is not None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - own.start / os.sysconf("SC_CLK_TCK")


def ancestors() -> Iterator[Process]:
    """Yield the parent of this process, its parent and so on."""
    process = read(os.getpid())
    for _ in range(_MOST_ANCESTORS):
        process = read(process.parent) if process is not None else None
        if process is None:
            return
        yield process


def command_line(pid: int) -> list[str]:
    """Return the words of a process's command line, none if it has ended; raise OSError if there is no process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return words[:-1]


def executable(pid: int) -> Path | None:
    """Return the program that a process runs; None if it has ended or belongs to another user."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def environment(pid: int) -> dict[str, str] | None:
    """Return the variables with which a process was started; None if it has ended or belongs to another user."""
    try:
        return _parse(_entries(pid))
    except OSError:
        return None


def with_variable(name: str, value: str) -> dict[int, dict[str, str]]:
    """Return the environments of this user's processes that were started with this variable, by process id.

    A launcher's helpers leave its session and process group, so only a variable marks the processes of a job.
    """
    mark, found = f"{name}={value}".encode(), {}
    for pid in _all_ids():
        with suppress(OSError):
            if mark in (entries := _entries(pid)):
                found[pid] = _parse(entries)
    return found


def lives(process: Process) -> bool:
    """Return whether a process has not ended; the kernel reuses the ids of ended processes."""
    now = read(process.pid)
    return now is not None and now.start == process.start


def send_signal(process: Process, number: int) -> None:
    """Send a signal to a process, unless it has ended, or belongs to another user."""
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):  # as in some builds of Python for old kernels
            if lives(process):
                os.kill(process.pid, number)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            if lives(process):  # the descriptor refers to this process even if the id is reused
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def python_main(module: str, *flags: str, path: Sequence[str] = ()) -> list[str]:
    """Return the command line by which a new Python process runs the function `main` of a module of cpudist.

    The process finds this package wherever it is installed, even if Python's `flags` exclude the usual folders, and
    finds modules in the folders of `path`.
    """
    root = str(Path(__file__).resolve().parents[2])
    # The name is not __main__, so that tracebacks leave out this frame, like frames of our modules.
    program = f"__name__ = 'cpudist'; import sys; sys.path[:0] = {[root, *path]!r}; from {module} import main; main()"
    return [sys.executable, *flags, "-c", program]


def _all_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _entries(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _parse(entries: list[bytes]) -> dict[str, str]:
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


def _name(words: list[str]) -> str:
    first = os.path.basename(words[0].partition(":")[0]) if words else ""  # "sshd: user@notty"
    return os.path.basename(words[1]) if first in _SHELLS and len(words) > 1 else first
