"""Processes of this machine, read from /proc.

psutil is not used: a job reads processes when Python's file system may be gone (`supervision/abort.py`), and it needs
start times in the kernel's ticks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SSH_DAEMONS = ("sshd", "sshd-session")
_SHELLS = frozenset(("sh", "dash", "bash"))
_ENDED = "ZX"  # states of a process whose parent has not yet asked for its exit status
_MOST_ANCESTORS = 64  # bounds the walk where process ids are reused meanwhile


class Process(NamedTuple):
    """One process at one moment.

    Attributes:
        pid, parent: its id and its parent's.
        start: when it started, in the kernel's clock ticks since boot; `pid` and `start` identify a process.
        name: its program's name, or the script's where a shell runs one.
    """

    pid: int
    parent: int
    start: int
    name: str


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
    """Return how long this process has run, in seconds; a process that has replaced its program keeps its start."""
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
    """Return the words of a process's command line; empty for a process that has ended.

    Raises:
        OSError: there is no such process.
    """
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return words[:-1]


def executable(pid: int) -> Path | None:
    """Return the program that a process runs; None where it has ended or belongs to another user."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def environment(pid: int) -> dict[str, str] | None:
    """Return the variables with which a process was started; None where it has ended or belongs to another user."""
    try:
        return _parse(_entries(pid))
    except OSError:
        return None


def with_variable(name: str, value: str) -> dict[int, dict[str, str]]:
    """Return the variables of each process of this user that was started with this one, by process id.

    A launcher's helpers leave its session and process group, so only a variable marks the processes of a job.
    """
    mark, found = f"{name}={value}".encode(), {}
    for pid in _all_ids():
        with suppress(OSError):
            if mark in (entries := _entries(pid)):
                found[pid] = _parse(entries)
    return found


def send_signal(pid: int, number: int, is_meant: Callable[[], bool]) -> None:
    """Send a signal to a process, unless it has ended, or belongs to another user.

    `is_meant` returns whether the id still belongs to that process: the kernel reuses the ids of ended processes.
    """
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):  # as in some builds of Python for old kernels
            if is_meant():
                os.kill(pid, number)
            return
        descriptor = os.pidfd_open(pid)
        try:
            if is_meant():  # asked with the descriptor open: it stays that of this process
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def python_main(module: str, *flags: str, path: Sequence[str] = ()) -> list[str]:
    """Return the command line by which a fresh Python runs the function `main` of one of our modules.

    It finds this package wherever that is installed, also where `flags` leave out the usual folders.

    Args:
        module: the module's name.
        flags: Python's options.
        path: where else it looks for modules.
    """
    root = str(Path(__file__).resolve().parents[1])
    # Not under the name __main__: tracebacks leave this frame out, like those of our modules.
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
