"""Copy all output of this rank to a file (`--log-dir`), or discard the output of ranks above 0 and report it."""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.processes.ending import flush_output
from cpudist.world import name_of

if TYPE_CHECKING:  # this module is imported before the rank is pinned, and so before torch
    from cpudist.job import Job

_RANKS = "cpudist/output/discarded"  # store key: the number of ranks that have found discarded output
_discarded: int | None = None  # descriptor of the file of `discard_output`
_END_SECONDS = 5.0  # Longest wait for the last lines: the reader of our output may block.


def log_output(folder: Path, rank: int, *, again: bool) -> None:
    """Copy standard output and standard error of this process, and of its children, to a file from now on.

    Two processes of `tee` copy it: they also get the output of C code, and the last lines of a process that is killed.
    After a restart of the job (`again`) they append to the file, ``rank-N.log`` in `folder`. Raises UserError if the
    file cannot be written.
    """
    file = folder / f"rank-{rank}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.open("ab" if again else "wb").close()
    except OSError as error:
        raise UserError(f"cannot write {file} ({error.strerror}); give another --log-dir") from None
    flush_output()
    copies = []
    for stream in (1, 2):
        shown = os.dup(stream)
        # tee has its own session: Ctrl-C and a launcher's signals to the rank's whole group must not end it.
        tee = subprocess.Popen(["tee", "-a", file], stdin=subprocess.PIPE, stdout=stream, start_new_session=True)
        assert tee.stdin is not None
        with tee.stdin as pipe:
            os.dup2(pipe.fileno(), stream)
        copies.append((tee, stream, shown))
    atexit.register(_finish, copies, os.getpid())


def _finish(copies: list[tuple[subprocess.Popen[bytes], int, int]], pid: int) -> None:
    """Show the rest of the output before this process ends; not in a forked child, which has the same `copies`."""
    if os.getpid() != pid:
        return
    flush_output()
    for tee, stream, shown in copies:
        os.dup2(shown, stream)
        try:
            tee.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # a child of this process may still write
            continue


def discard_output() -> None:
    """Discard the standard output of this process and its children from now on.

    The output goes into a file in memory, not to /dev/null, so that `report_discarded` sees whether there was any.
    """
    global _discarded
    _discarded = os.memfd_create("standard output")
    fcntl.fcntl(_discarded, fcntl.F_SETFL, os.O_APPEND)  # writers append, also after `look` has truncated it
    os.dup2(_discarded, sys.stdout.fileno())


def report_discarded(job: Job) -> None:
    """Empty the file of `discard_output` at each heartbeat; the first rank that finds output reports it."""
    if (file := _discarded) is None:
        return
    found = False

    def look(store: Any) -> None:
        nonlocal found
        if os.fstat(file).st_size:
            os.ftruncate(file, 0)
            if not found and store is not None:
                found = True
                if store.add(_RANKS, 1) == 1:
                    ways = "--all-output shows what all ranks print, --log-dir DIR keeps it in files"
                    say(f"{name_of(job.world)} also prints: {ways}")

    job.heartbeat.add(look)
    job.finish_before_end(lambda: look(job.store))
