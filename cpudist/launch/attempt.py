"""One attempt to run a job: starts the launcher, lets signals and output through, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from cpudist.launch.guards import Guards
from cpudist.launch.hostfile import Host
from cpudist.launch.launchers.base import Launcher, describe

_LOOK_SECONDS = 0.1
_ALONE_SECONDS = 5.0  # what a launcher gets to end when all ranks that can be reached have ended
_STOP_SECONDS = 3.5  # what ranks get to end after the user's signal
_TAIL_BYTES = 1 << 16
_REST_SECONDS = 2.0  # for the rest of the output, once the launcher has ended
_LOST = 1  # exit status of a job that lost a host

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHECKPOINT_SIGNAL = signal.SIGUSR1  # Slurm's, a while before the time is over: --signal=B:USR1@60


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: the launcher's exit status; not 0 in any case where the job has not come to its end.
        stopped: whether a signal to us has ended it.
        reason: what is known of it, in a few words; empty where the ranks have said it themselves.
    """

    status: int
    stopped: bool = False
    reason: str = ""


def attempt(
    launcher: Launcher,
    command: Sequence[str],
    variables: Mapping[str, str],
    hosts: Sequence[Host],
    grace: float | None = None,
) -> Outcome:
    """Run `command` to its end and return how it ended; no process of it lives then on any host that answers.

    Args:
        launcher: whose command it is.
        command: the command line.
        variables: the environment; CPUDIST_JOB_ID in it marks this attempt, and no other.
        hosts: where ranks run.
        grace: the seconds that ranks get after a signal where they save a checkpoint first; SIGUSR1 is such a signal
            then, and a second signal cuts it short. None: they save none.

    Raises:
        UserError: a host refuses what watches over the job there.
    """
    with _signals([*_SIGNALS, *[_CHECKPOINT_SIGNAL] * (grace is not None)]) as stop:
        guards = Guards(hosts, variables["CPUDIST_JOB_ID"], launcher.rank_variable)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(
                command,
                env=variables,
                # A terminal belongs to our session; reading from it in another one fails.
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            assert process.stderr is not None
            # Hydra writes that a rank was killed to standard output, Open MPI to standard error.
            tails = [_Tail(process.stdout, sys.stdout), _Tail(process.stderr, sys.stderr)]
            reason = _wait(process, guards, tails, stop, _STOP_SECONDS if grace is None else grace)
            status = process.poll()
        finally:
            unreached = guards.end()
            if process is not None:
                _kill(process)
        said = "\n".join(tail.text(stop) for tail in tails)
        killed = describe(launcher.deaths(said), guards.first_gone)
    if stop:
        return Outcome(128 + stop[0], stopped=True)
    if unreached and not reason:
        reason = f"{_names(unreached)} cannot be reached to see that nothing is left"
    if status is None:
        return Outcome(_LOST, reason=reason)
    return Outcome(status if status >= 0 else 128 - status, reason=killed or reason)


def _wait(
    process: subprocess.Popen[bytes], guards: Guards, tails: Sequence[_Tail], stop: list[int], stop_seconds: float
) -> str:
    """Until the launcher has ended, or has to be; returns why it has to, in words."""
    passed_on = 0
    deadline: float | None = None
    alone_since: float | None = None
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        guards.tick()
        now = time.monotonic()
        if len(stop) > passed_on:
            # A terminal that has gone is no concern of the ranks, which would die of that at once.
            number = signal.SIGTERM if stop[passed_on] == signal.SIGHUP else stop[passed_on]
            passed_on += 1
            # To the ranks, not through the launcher: Open MPI's makes SIGTERM of it, and SIGKILL a second later.
            if not guards.signal_ranks(number):
                _signal_group(process, number)
            deadline = now + stop_seconds if deadline is None else now  # a second one is meant
        if deadline is not None:
            if now > deadline:
                return "it was stopped"
            continue
        if guards.lost:
            return f"{_names(guards.lost)} does not answer any more"
        unread = any(tail.writing for tail in tails)  # the launcher cannot end before it has passed all on
        alone_since = (alone_since or now) if guards.ranks_ended and not unread else None
        if alone_since is not None and now - alone_since > _ALONE_SECONDS:
            return "all ranks that can be reached have ended, and the launcher has not"
    return ""


class _Tail:
    """Passes a process's output on, as it comes, and keeps the end of it.

    `writing` says whether it waits for whoever reads, such as `less`.
    """

    def __init__(self, stream: IO[bytes], to: IO[str]) -> None:
        self.writing = False
        self._stream = stream
        self._to = to.fileno()  # Python's own lock on it would be in the way when we exit in the midst of a write
        self._kept = b""
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def text(self, stop: list[int]) -> str:
        """What has come last; waits for the rest, but not for processes that have escaped with the other end.

        A reader gets the time that it takes, until there is something in `stop`.
        """
        self._thread.join(_REST_SECONDS)
        while self.writing and not stop:
            self._thread.join(_REST_SECONDS)
        return self._kept.decode(errors="replace")

    def _pass_on(self) -> None:
        while piece := os.read(self._stream.fileno(), 65536):
            self._kept = (self._kept + piece)[-_TAIL_BYTES:]
            self.writing = True
            with suppress(OSError):
                while piece:
                    piece = piece[os.write(self._to, piece) :]
            self.writing = False


@contextmanager
def _signals(numbers: Sequence[signal.Signals]) -> Iterator[list[int]]:
    """Collect the signals that end a job. One that suspends is not taken: the guards would find us gone.

    Where SIGHUP is ignored already (nohup), it stays so.
    """
    stop: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: stop.append(number))
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The launcher itself; the guard of this host has killed the rest."""
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _names(hosts: Sequence[Host]) -> str:
    return " and ".join(host.name for host in hosts)
