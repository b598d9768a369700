"""Watches over a job's processes on one host, and ends them when it is told to or left alone.

    python guard.py JOB RANK_VARIABLE

JOB is what the job's processes carry as CPUDIST_JOB_ID in their environment, by which alone they are found. `cpudist
launch` starts one guard on every host, before the job, and keeps talking to it over standard input: any line says that
it is still there, `signal N` passes a signal on to the ranks, `end` says that the job is over. A guard that hears
nothing for a while, or whose input has ended, is on a host that has been cut off, or its `cpudist launch` has been
killed: then it ends the job's processes too.

It writes one line for each thing that it sees, and one in every second: `ranks N`, how many ranks live here;
`gone RANK`, a rank has ended; `went RANK`, at once with others; `left N`, its last: how many could not be ended.

It runs before anything of cpudist is known to work on that host, so it imports nothing of it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

SILENCE_SECONDS = 25.0
_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
_CONNECTIONS = ("sshd", "sshd-session")


def main(job: str, rank_variable: str) -> None:
    """Watch until told to end, or left alone; then end the job's processes."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)  # the terminal's are for `cpudist launch`, which tells us
    os.set_blocking(0, False)
    guard = _Guard(job, rank_variable)
    heard, text = time.monotonic(), b""
    while time.monotonic() - heard < SILENCE_SECONDS:
        guard.look()
        if not guard.wait_for_words(_LOOK_SECONDS):
            continue
        try:
            words = os.read(0, 65536)
        except BlockingIOError:
            continue
        *lines, text = (text + words).split(b"\n")
        for line in lines:
            if line.startswith(b"signal "):
                guard.signal(int(line.split()[1]))
        if not words or b"end" in lines:
            break
        heard = time.monotonic()
    else:
        guard.hang_up()
    say(f"left {guard.end()}")


class _Guard:
    """What one guard has seen: the ranks by a file descriptor that tells of their end, and all processes."""

    def __init__(self, job: str, rank_variable: str) -> None:
        self._mark = b"CPUDIST_JOB_ID=" + job.encode()
        self._rank = rank_variable.encode() + b"="
        self._ranks: dict[int, tuple[int, bytes]] = {}  # descriptor -> process id, rank
        self._known: dict[int, int | None] = {}  # process id -> when it started
        self._started = _start_time(os.getpid()) or 0

    def look(self) -> None:
        """See who is there, and say how many ranks are."""
        watched = {process for process, _ in self._ranks.values()}
        for process, rank in self._find().items():
            if rank is not None and process not in watched:
                with suppress(OSError):  # it has just ended
                    self._ranks[os.pidfd_open(process)] = process, rank
        say(f"ranks {len(self._ranks)}")

    def wait_for_words(self, seconds: float) -> bool:
        """Whether there is something to read within so many seconds; tells of ranks that end meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([0, *self._ranks], [], [], left)
            word = "gone" if len(ready) == 1 else "went"  # of several nobody knows which was first
            for descriptor in ready:
                if descriptor in self._ranks:
                    say(f"{word} {self._ranks.pop(descriptor)[1].decode(errors='replace')}")
                    os.close(descriptor)
            if 0 in ready:
                return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal to all ranks of this host."""
        for descriptor in self._ranks:
            with suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.Signals(number))

    def hang_up(self) -> None:
        """End the connections of a host that has been cut off: sshd would wait for the other end for hours."""
        helpers = [process for process in self._find() if _parent(process) not in self._known]
        for process in {_parent(os.getpid()), *map(_parent, helpers)}:
            if _name(process) in _CONNECTIONS:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)

    def end(self) -> int:
        """Kill until nobody is left; returns how many are."""
        deadline = time.monotonic() + _END_SECONDS
        while self._find() and time.monotonic() < deadline:
            for process in self._known:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        return len(self._find())

    def _find(self) -> dict[int, bytes | None]:
        """The job's living processes: process id -> its rank, None where it is none or the child of one.

        They carry the mark, or have been seen to carry it and may have overwritten it since.
        """
        marked = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (environment := _environment(int(name))) and self._mark in environment:
                marked[int(name)] = next(
                    (entry[len(self._rank) :] for entry in environment if entry.startswith(self._rank)), None
                )
        for process in [*marked, *filter(self._is_helper, map(_parent, marked))]:
            self._known.setdefault(process, _start_time(process))
        self._known = {one: started for one, started in self._known.items() if _start_time(one) == started is not None}
        return {
            process: None if (rank := marked.get(process)) is None or marked.get(_parent(process)) == rank else rank
            for process in self._known
        }

    def _is_helper(self, parent: int) -> bool:
        """Whether the parent of a marked process is the launcher's helper, which came over ssh, without the mark.

        Helpers are younger than this guard. Nobody else is who may be such a parent: the system's first process
        inherits orphans, and on the launcher's own host there is `cpudist launch`.
        """
        started = _start_time(parent)
        return started is not None and started > self._started


def say(line: str) -> None:
    """Tell `cpudist launch`, if it still listens."""
    with suppress(OSError):
        os.write(1, line.encode() + b"\n")


def _environment(process: int) -> list[bytes]:
    """Empty for other users' processes, and for those that have ended and await their parent."""
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _fields(process: int) -> list[str]:
    """Of /proc/…/stat, from the state on: proc_pid_stat(5). Empty for what has ended."""
    try:
        with open(f"/proc/{process}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields


def _parent(process: int) -> int:
    fields = _fields(process)
    return int(fields[1]) if fields else 0


def _name(process: int) -> str:
    try:
        with open(f"/proc/{process}/comm", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(process: int) -> int | None:
    """In ticks since the machine started; a process id alone may be another process's by now."""
    fields = _fields(process)
    return int(fields[19]) if fields else None


if __name__ == "__main__":
    main(*sys.argv[1:])
