"""Run a job's launcher once: pass on signals and output, and leave no process behind."""

import errno
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cpudist.console import number_of, say
from cpudist.errors import FAILED
from cpudist.hosts.node_agents import NodeAgents
from cpudist.hosts.remote import names
from cpudist.launchers.mpi_launcher import Host, MpiLauncher
from cpudist.processes.attempt import JOB_ID
from cpudist.processes.lost_ranks import LostRank, first_killed, killed_by
from cpudist.processes.relay import Relay

_LOOK_SECONDS = 0.1
_SILENT_SECONDS = 2.0  # after this long without output, a line reports the start's progress
_START_SECONDS = 300.0  # limit until the first rank starts; the default of cpudist-train's --timeout
_ALONE_SECONDS = 5.0  # the launcher may take this long to end after all reachable ranks have ended
_STOP_SECONDS = 3.5  # the ranks may take this long to end after the user's signal
_TAIL_BYTES = 1 << 16
_BANNERS_BEGIN = re.compile(rb"={20,}(?:\n=.*)*\n?\Z")
_REST_SECONDS = 2.0  # the rest of the output may take this long after the launcher has ended

# The store's message about a lost rank. It is hidden if the user's signal has ended the rank.
_STOPPED_RANK = re.compile(rb"cpudist: [^\n]* ended without an error message [^\n]*\n")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHECKPOINT_SIGNAL = signal.SIGUSR1  # Slurm sends it before the time limit with --signal=B:USR1@60


@dataclass(frozen=True)
class JobExit:
    """How a job ended."""

    status: int  # the exit status; 0 only where the launcher has returned 0
    stopped: bool = False  # whether this process got a signal to stop the job
    reason: str = ""  # why it failed or was stopped; empty where the ranks have reported it themselves
    output_lost: bool = False  # whether some of its output could not be written
    # The host that may have caused the failure: it was lost, or a rank on it was killed or stuck.
    suspect: Host | None = None


def supervise(
    mpi: type[MpiLauncher],
    command: Sequence[str],
    variables: Mapping[str, str],
    hosts: Sequence[Host],
    grace: float | None = None,
) -> JobExit:
    """Run a launcher to its end. Afterwards no process of the job is left on any host that answers.

    Args:
        variables: the launcher's environment; CPUDIST_JOB_ID in it marks the processes of this job.
        grace: seconds that ranks get to save a checkpoint, counted anew from each SIGUSR1 and from the first other
            signal; a second other signal ends the job at once. None: ranks do not save on signals.
    """
    with _signals([*_SIGNALS, *[_CHECKPOINT_SIGNAL] * (grace is not None)]) as stop:
        agents = NodeAgents(hosts, variables[JOB_ID], mpi.rank_variable)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(
                command,
                env=variables,
                # A process in another session cannot read from our terminal.
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            assert process.stderr is not None
            outputs = [  # Hydra reports a killed rank on standard output, Open MPI on standard error.
                _Output("standard output", sys.stdout, mpi.banner),
                _Output("standard error", sys.stderr, _STOPPED_RANK, lambda: bool(stop)),
            ]
            pipes = (process.stdout, process.stderr)
            relays = [Relay(pipe, output.write) for pipe, output in zip(pipes, outputs, strict=True)]

            def report_start() -> None:
                if not any(output.tail for output in outputs):
                    _report_start(hosts, agents)

            reason = _wait(process, agents, relays, report_start, stop, _STOP_SECONDS if grace is None else grace)
            ended = _has_ended(process)
        finally:
            lost, unreached = agents.lost, agents.end()
            if process is not None:  # the node agents have killed the job's other processes
                _signal_group(process, signal.SIGKILL)
                process.wait()
        for relay in relays:
            relay.finish(_REST_SECONDS, lambda: stop)
        tail = "\n".join(output.tail for output in outputs)
        killed = first_killed(mpi.killed_ranks(tail), agents.first_ended)
    output_lost = any(relay.error is not None for relay in relays)
    if stop:
        # Ranks that save a checkpoint report it; a rank that the signal kills reports nothing.
        silent = grace is None or reason or killed or outputs[1].hidden
        why = f"stopped by {signal.Signals(stop[0]).name}" if silent else ""
        if why and grace is not None and killed and killed.how not in ("ended", signal.SIGTERM, *stop):
            why = f"{why}, and {killed}"  # for example because memory ran out while it saved
        return JobExit(128 + stop[0], stopped=True, reason=why, output_lost=output_lost)
    if unreached and not reason:
        reason = f"{names(unreached)} cannot be reached to make sure that no process is left there"
    suspect = lost[0] if lost else _suspect(killed, agents.blamed, hosts)
    if not ended:
        return JobExit(FAILED, reason=reason, output_lost=output_lost, suspect=suspect)
    status = process.returncode
    if killed:
        reason = str(killed)
        if isinstance(killed.how, int):  # Hydra's own status is 255
            status = 128 + killed.how
    elif status < 0:
        reason = f"the launcher, {Path(command[0]).name}, {killed_by(-status)}"
    return JobExit(status if status >= 0 else 128 - status, reason=reason, output_lost=output_lost, suspect=suspect)


def _suspect(killed: LostRank | None, blamed: Sequence[int], hosts: Sequence[Host]) -> Host | None:
    """Return the host of a killed rank or of `blamed` ranks; None unless it is one host. MPIs fill hosts in order."""
    if killed is not None and killed.rank is None and killed.host:
        return next((host for host in hosts if host.name == killed.host), None)
    ranks = blamed if killed is None or killed.rank is None else [killed.rank]
    placed = [host for host in hosts for _ in range(host.slots or 0)]
    found = {placed[rank] for rank in ranks if rank < len(placed)}
    return found.pop() if len(found) == 1 else None


def _wait(
    process: subprocess.Popen[bytes],
    agents: NodeAgents,
    relays: Sequence[Relay],
    report_start: Callable[[], None],
    stop: list[int],
    stop_seconds: float,
) -> str:
    """Wait until the launcher has ended or must be killed; return why it must be killed."""
    passed_on = 0
    deadline: float | None = None
    alone_since: float | None = None
    start, reported = time.monotonic(), False
    while not _has_ended(process):
        time.sleep(_LOOK_SECONDS)
        agents.tick()
        now = time.monotonic()
        if not reported and now - start > _SILENT_SECONDS:
            reported = True
            report_start()
        if len(stop) > passed_on:
            # Forward SIGHUP as SIGTERM: ranks handle SIGTERM, and SIGHUP would kill them.
            number = signal.SIGTERM if stop[passed_on] == signal.SIGHUP else stop[passed_on]
            passed_on += 1
            # Bypass the launcher: Open MPI's would send SIGTERM instead, and SIGKILL a second later.
            if not agents.signal_ranks(number):
                _signal_group(process, number)
            # A scheduler sends SIGUSR1 as a notice, and SIGTERM at the time limit.
            ends = [number for number in stop[:passed_on] if number != _CHECKPOINT_SIGNAL]
            deadline = now if len(ends) > 1 else now + stop_seconds
        if deadline is not None:
            if now > deadline:
                return "it was stopped"
            continue
        if agents.lost:
            return f"{names(agents.lost)} does not answer any more"
        if not agents.had_ranks and now - start > _START_SECONDS:
            remedy = "look for a firewall between the hosts, and run its command by hand: cpudist launch --dry-run"
            return f"the launcher has started no rank within {_START_SECONDS:.0f} s; {remedy}"
        # While our reader (such as `less`) blocks, the launcher cannot write its output and end.
        blocked = any(relay.writing for relay in relays)
        alone_since = (alone_since or now) if agents.ranks_ended and not blocked else None
        if alone_since is not None and now - alone_since > _ALONE_SECONDS:
            return "all ranks that can be reached have ended, but the launcher has not"
    return ""


def _report_start(hosts: Sequence[Host], agents: NodeAgents) -> None:
    """Report in one line which hosts or ranks the start waits for; called after two seconds without output."""
    ranks = sum(host.slots or 0 for host in hosts)
    if waiting := agents.without_ranks:
        say(f"starting on {number_of(len(hosts), 'host')}: waiting for {names(waiting)}")
    elif ranks > 1:
        say(f"starting on {names(hosts)}: {ranks} ranks import torch and find each other")


class _Output:
    """Writes to a standard stream (None: closed), but not `banner` if `hides()`; keeps the end of the text."""

    def __init__(
        self,
        name: str,
        stream: IO[str] | None,
        banner: re.Pattern[bytes] | None = None,
        hides: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name = name
        self._banner, self._hides = banner, hides
        self._begun = b""  # the beginning of a possible banner
        self._to = None if stream is None else stream.fileno()  # a descriptor: the stream's lock would block our exit
        self._kept = b""
        self._failed = False
        self.hidden = False  # whether a banner was left out

    def write(self, piece: bytes) -> None:
        """Write all bytes, even to a non-blocking file. Report the first OSError, and raise every one."""
        self._kept = (self._kept + piece)[-_TAIL_BYTES:]
        piece = self._without_banner(piece)
        try:
            while piece:
                if self._to is None:
                    raise OSError(errno.EBADF, "it is closed")
                try:
                    piece = piece[os.write(self._to, piece) :]
                except BlockingIOError:
                    select.select([], [self._to], [])
        except OSError as error:
            if not self._failed:
                self._failed = True
                lost = "output is lost, the job goes on, and the exit status will not be 0"
                say(f"{self._name} cannot be written: {error.strerror}; {lost}")
            raise

    def _without_banner(self, piece: bytes) -> bytes:
        if self._banner is None or not self._hides():
            return piece
        text, banners = self._banner.subn(b"", self._begun + piece)
        self.hidden |= banners > 0
        begun = _BANNERS_BEGIN.search(text) if piece else None  # an empty piece is the end of the stream
        self._begun = text[begun.start() :] if begun else b""
        return text.removesuffix(self._begun)

    @property
    def tail(self) -> str:
        """The last 64 KB of the output, hidden banners included."""
        return self._kept.decode(errors="replace")


@contextmanager
def _signals(numbers: Sequence[signal.Signals]) -> Iterator[list[int]]:
    """Collect signals in a list while the block runs. SIGHUP stays ignored where it already is (nohup)."""
    stop: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: stop.append(number))
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    # Ctrl-Z must not suspend this process: the node agents would take it for lost.
    handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended. It is not reaped, so its id cannot be reused."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the parent process ignores SIGCHLD, so the kernel reaps
        return True


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
