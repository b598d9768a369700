"""This node's ranks in one attempt: start them, show their output, and wait for their end.

The processes are not forked, so threads, an MPI or a process group of the notebook do not exist in them.
"""

import base64
import codecs
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from cpudist.hosts.node_agents import NodeAgents
from cpudist.launchers.mpi_launcher import Host
from cpudist.launchers.notebook import rank_variables, without_launcher
from cpudist.notebook.cell import LiveView, shell
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.result import Failure, Result, ResultChannel
from cpudist.notebook.settings import Settings
from cpudist.processes.attempt import JOB_ID, RESTART_COUNT, RUN_ID
from cpudist.processes.procfs import python_main
from cpudist.processes.relay import Relay

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")
_POLL_SECONDS = 0.1
_OTHERS_SECONDS = 10.0  # after a failure the other ranks may take this long to end by themselves
_STOP_SECONDS = 2.0  # after an interrupt ranks may take this long to clean up
_REST_SECONDS = 1.0  # the rest of the output may take this long after a rank has ended
_CAUSE_SECONDS = 5.0  # another node may take this long to report why ranks have ended here without an exception


@dataclass
class Output:
    """Writes a rank's output to `sys.stdout` or `sys.stderr`; a cell may replace these at any time."""

    name: Literal["stdout", "stderr"]
    prefix: str | None  # the prefix of each line; None: no prefix
    by_line: bool  # whether to write complete lines only, so that lines of several ranks do not mix
    _decoder: Any = field(default_factory=partial(codecs.getincrementaldecoder("utf-8"), "replace"), init=False)
    _rest: str = field(default="", init=False)

    def write(self, piece: bytes) -> None:
        """Write a piece of UTF-8 text of any size; an empty piece ends the text."""
        text = self._rest + self._decoder.decode(piece, final=not piece)
        if self.by_line:
            lines = _LINE.findall(text)  # A progress bar ends its lines with carriage returns.
            self._rest = text[sum(map(len, lines)) :]
            if not piece and self._rest:
                lines.append(f"{self._rest}\n")
            text = "".join(f"{self.prefix or ''}{line}" if line.strip() else line for line in lines)
        stream = getattr(sys, self.name)
        if text and stream is not None:
            stream.write(text)
            stream.flush()


class _Rank:
    """One rank's process, its output and its result channel."""

    def __init__(self, settings: Settings, local_rank: int, payload: int, variables: Mapping[str, str]) -> None:
        self.number = settings.placement(local_rank).rank
        self.channel = ResultChannel()
        self.failure: Failure | None = None
        self.result = Result(None)
        self.started = False
        prefix = settings.prefix(local_rank)
        shown = self.number == 0 or prefix is not None
        self.process = subprocess.Popen(
            [*python_main("cpudist.notebook.worker"), str(payload), str(self.channel.descriptor)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(payload, self.channel.descriptor),
            start_new_session=True,  # Jupyter interrupts the notebook's process group; `_stop` interrupts the ranks
        )
        assert self.process.stderr is not None
        by_line = prefix is not None or self.number != 0
        self.relays = [Relay(self.process.stderr, Output("stderr", prefix, by_line).write)]
        if self.process.stdout is not None:
            self.relays.append(Relay(self.process.stdout, Output("stdout", prefix, by_line).write))

    def has_ended(self) -> bool:
        """Return whether the process has ended; set `result` or `failure`, and show figures that have arrived."""
        status = self.process.poll()
        for message in self.channel.received():
            if isinstance(message, bytes):
                picture = {"image/png": base64.b64encode(message).decode(), "text/plain": "a figure of rank 0"}
                shell().display_pub.publish(picture)
            elif message is None:
                self.started = True
            elif isinstance(message, Failure):
                self.failure = message
            else:
                self.result = message
        if status not in (None, 0) and self.failure is None:
            self.failure = Failure.of_status(self.number, status)
        return status is not None

    def close(self) -> None:
        """Kill the process if it still runs, and close its pipes and result channel."""
        self.process.kill()
        self.process.wait()
        for relay in self.relays:
            relay.finish(_REST_SECONDS, lambda: True)
        self.channel.close()


class LocalRanks:
    """The ranks of this node in one attempt. `run` waits for their end, and `close` kills their remaining processes.

    `payload` is a descriptor of the file for `worker.py`; all attempts of a launch have the same `run_id`.
    """

    def __init__(self, settings: Settings, nodes: Nodes, payload: int, attempt: int, run_id: str) -> None:
        self._nodes = nodes
        self._attempt = attempt
        self._ranks: list[_Rank] = []
        mark = uuid.uuid4().hex
        variables = _variables(settings, mark, run_id, attempt)
        # The agent kills every marked process, children of ranks included, even if this process is killed.
        self._agents = NodeAgents([Host("localhost")], mark, "RANK")
        self._view = LiveView()
        try:
            for local_rank in range(settings.num_processes):
                own = rank_variables(settings.placement(local_rank), nodes.rendezvous(attempt))
                self._ranks.append(_Rank(settings, local_rank, payload, {**variables, **own}))
        except BaseException:
            self.close()
            raise

    def run(self) -> Result | Failure:
        """Wait for all ranks and pass their output on; return rank 0's result, or the attempt's failure."""
        try:
            failure = self._wait()
        except KeyboardInterrupt:
            self._stop()
            raise
        for rank in self._ranks:
            for relay in rank.relays:
                relay.finish(_REST_SECONDS)
        if failure is not None:
            return self._nodes.report(self._attempt, failure)
        return self._ranks[0].result

    def close(self) -> None:
        self._agents.end()
        for rank in self._ranks:
            rank.close()
        self._view.close()

    def _wait(self) -> Failure | None:
        """Wait until all ranks have ended, for a bounded time after a failure; return the first failure on any node."""
        deadline, elsewhere = float("inf"), None
        while not self._all_have_ended() and time.monotonic() < deadline:
            self._pause()
            elsewhere = elsewhere or self._nodes.failure(self._attempt)
            first = self._first_failure()
            if first is not None and first.how == "killed":  # report it before other ranks fail because of it
                self._nodes.report(self._attempt, first)
            if first is not None or elsewhere is not None:
                deadline = min(deadline, time.monotonic() + _OTHERS_SECONDS)
        first = self._first_failure()
        if first is not None and first.how == "ended":
            deadline = time.monotonic() + _CAUSE_SECONDS
            while elsewhere is None and self._nodes.several and time.monotonic() < deadline:
                self._pause()
                elsewhere = self._nodes.failure(self._attempt)
        return elsewhere or first

    def _all_have_ended(self) -> bool:
        ended = [rank.has_ended() for rank in self._ranks]  # no short circuit: each call sets its rank's failure
        return all(ended)

    def _first_failure(self) -> Failure | None:
        failures = [rank.failure for rank in self._ranks if rank.failure is not None]
        return min(failures, key=lambda failure: failure.order, default=None)

    def _stop(self) -> None:
        """Interrupt the ranks, and give them time to clean up."""
        stopped = Failure("the job", "was interrupted in another node's cell", time.monotonic(), stopped=True)
        self._nodes.report(self._attempt, stopped)
        for rank in self._ranks:
            if not rank.has_ended():
                rank.process.send_signal(signal.SIGINT if rank.started else signal.SIGKILL)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline and not self._all_have_ended():
            self._pause()

    def _pause(self) -> None:
        self._agents.tick()
        self._view.tick([rank.process.pid for rank in self._ranks])
        time.sleep(_POLL_SECONDS)


def _variables(settings: Settings, job_id: str, run_id: str, attempt: int) -> dict[str, str]:
    variables = without_launcher(os.environ)
    if variables.get("MPLBACKEND", "").startswith("module:"):  # this backend draws into cells or an editor's window
        variables["MPLBACKEND"] = "agg" if shell() is None else "module://cpudist.notebook.figures"
    return {
        **variables,
        JOB_ID: job_id,
        RUN_ID: run_id,
        RESTART_COUNT: str(attempt),
        "ACCELERATE_MIXED_PRECISION": settings.mixed_precision,
    }
