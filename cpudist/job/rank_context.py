"""Connect one rank to the others of its job, from the rendezvous to the common end."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from cpudist.changes import Changes
from cpudist.console import is_interactive, say
from cpudist.errors import StartupTimeout
from cpudist.observability.pace import PaceMeter
from cpudist.observability.stack_server import StackServer
from cpudist.rendezvous import all_gather, connect
from cpudist.store import Connection, StoreLost
from cpudist.supervision import failure
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.rank_status import RankStatus, published, status_of
from cpudist.supervision.rank_texts import summary
from cpudist.supervision.stall import Stall
from cpudist.supervision.watch import GRACE_SECONDS, RanksMissing, Watch
from cpudist.world import elsewhere, gather_rank_info, name_of

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.launchers import Launcher
    from cpudist.supervision.step_counter import StepCounter

_STORE_SECONDS = 5.0
_TESTED_TORCH = "2.15"


def untested_torch() -> str | None:
    """Return a warning if torch is newer than the newest tested version; None otherwise."""
    newer = torch.__version__ > f"{_TESTED_TORCH}.99"
    return f"cpudist was not tested with torch {torch.__version__}, only up to {_TESTED_TORCH}" if newer else None


class RankContext:
    """Connects this rank to the other ranks of its job, and ends it together with them.

    Attributes:
        launcher: the launcher of the job.
        rendezvous: the store that all ranks share, and its address.
        world: this rank's place among the others; its `backend` is empty.
        members: each rank's published description of itself, in rank order.
        timeout: the limit of every collective and every wait in the store, in seconds; `set_timeout` changes it.
        heartbeat: this rank's thread that calls functions once a second.
        changes: the job's changes in this process; the end of the job undoes them.
        backend: reports the calls that are under way; None until it has started.
        counter: this rank's steps and batches; None until the backend has started.
        pace: reads this rank's pace; None until the backend has started.
        on_failure: called on rank 0 before it ends because of a failure.
        started: set once the job has started, so that `on_failure` records the failure.
        on_end: called when the process exits before the job was shut down; it waits for the other ranks.
        unfinished: functions that wait for background work, such as saving, before the job ends.

    Args:
        launcher: the launcher that started the job.
        attempt: a text that is the same on all ranks and different for each job of this process.
        timeout: limit of each step of the start in seconds, and the initial value of `timeout`.
        interface: the network interface of the rendezvous; None: any.

    Raises:
        UserError: the launcher's variables contradict each other or MPI.
        StartupTimeout: a rank did not arrive in time; the message names it.
    """

    def __init__(
        self, launcher: Launcher, attempt: str, timeout: float, interface: str | None, changes: Changes
    ) -> None:
        self.launcher = launcher
        self.changes = changes
        self.timeout = timeout
        self.backend: Backend | None = None
        self.counter: StepCounter | None = None
        self.pace: PaceMeter | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.started = threading.Event()
        self.on_end: Callable[[], None] = self.wait_for_all
        self.unfinished: list[Callable[[], None]] = []
        self._watch: Watch | None = None
        self._stacks: StackServer | None = None
        self._stall: Stall | None = None
        self._placement = launcher.placement()
        self.rendezvous = connect(launcher.rendezvous(), self._placement, attempt, timeout, interface)
        changes.then(self.rendezvous.close)
        self.world, self.members = gather_rank_info(launcher, is_interactive(), self.all_gather)
        if self.world.rank == 0:
            misplaced = elsewhere(self.members, self.world, launcher.requested_nodes)
            for doubt in filter(None, (launcher.warning, misplaced, untested_torch())):
                say(f"warning: {doubt}")
        self.heartbeat = Heartbeat(self.world.size, self.rendezvous.address, timeout)
        changes.then(self.heartbeat.stop)
        if not any(member.interactive for member in self.members):
            self._watch_the_others()
        self._serve_stacks()

    def all_gather(self, key: str, value: str) -> list[str]:
        """Publish this rank's value under a new key and return the values of all ranks, in rank order.

        Raises:
            StartupTimeout: a rank has not published its value in time; the message names it.
        """
        me = self._placement
        return all_gather(self.rendezvous.store, me.rank, me.size, f"init/{key}", value, self.timeout)

    def set_timeout(self, seconds: float) -> None:
        """Change `timeout`, and the limits of the backend and of the store.

        Raises:
            UserError: the backend cannot change its limit.
        """
        assert self.backend is not None
        self.backend.set_timeout(seconds)
        self.rendezvous.store.set_timeout(timedelta(seconds=seconds))
        self.timeout = seconds

    @property
    def is_watched(self) -> bool:
        """Whether the ranks watch each other; they do not in a notebook or in a job of one process."""
        return self._watch is not None

    def end_when_stalled(self, seconds: float) -> None:
        """End the job if no rank shows a sign of life for `seconds`; see `Stall`. A second call does nothing."""
        if self._stall is not None:
            return
        if any(member.interactive for member in self.members):
            say("warning: stall has no effect in a notebook or an interactive session")
            return
        assert self.backend is not None
        assert self.counter is not None
        explain = self._watch.explain if self._watch is not None else list
        self._stall = Stall(
            seconds,
            self.world,
            self.heartbeat,
            self.counter,
            self.backend.progress,
            explain,
            self._show_stacks,
            lambda: self.on_failure(),
            self.changes,
        )

    def statuses(self) -> dict[int, RankStatus]:
        """Return the newest status of each rank that has published one; any thread may call this."""
        if self.rendezvous.address is None:
            return {0: self._status(at_end=False)}
        with suppress(StoreLost, StartupTimeout), closing(Connection(self.rendezvous.address, _STORE_SECONDS)) as store:
            return published(store, self.world.size)
        return {}

    def serve_figures(self, read: Callable[[], dict[str, Any]]) -> None:
        """Serve the result of `read` to `cpudist top`; another thread calls `read`."""
        if self._stacks is not None:
            self._stacks.figures = read

    def wait_for_all(self) -> None:
        """Wait until all ranks have finished; does nothing a second time."""
        for finish in self.unfinished:
            finish()
        if self._watch is not None:
            try:
                self._watch.finish()
            except RanksMissing as error:
                self.fail(error, lambda _error: None)
        if self._stall is not None:
            self._stall.stop()

    def fail(
        self, error: BaseException, show: failure.Show = traceback.print_exception, rank: int | None = None
    ) -> NoReturn:
        """End the job on every rank because of `error`; see `failure.fail`."""
        failure.fail(error, self._watch, show, rank, lambda: self.on_failure())

    def waited_for(self, error: BaseException) -> list[str]:
        """Return sentences about the ranks that a timed-out collective waited for; see `failure.waited_for`."""
        return failure.waited_for(error, self._watch)

    def close_in_child(self) -> None:
        """Close all connections in a forked child; it is not a rank, so its exit must not end the job."""
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None
        self.heartbeat.close_in_child()
        if self._watch is not None:
            self._watch.close_in_child()
            self._watch = None
            sys.excepthook = sys.__excepthook__
            atexit.unregister(self._end_with_process)
        if self.rendezvous.server is not None:
            self.rendezvous.server.close_in_child()

    def _record_failure(self) -> None:
        """Call `on_failure`. Another rank may fail while this one still starts: its record would then say "running"."""
        if threading.current_thread() is not threading.main_thread():
            self.started.wait(GRACE_SECONDS)
        self.on_failure()

    def _watch_the_others(self) -> None:
        if self.rendezvous.address is not None:
            hosts = [member.host for member in self.members]
            self._watch = Watch(
                self.world, hosts, self.rendezvous.address, self._status, self.heartbeat, lambda: self.timeout
            )
            self._watch.on_failure = self._record_failure
            self._watch.waiting_agent = self.launcher.waiting_agent
            self.changes.then(self._watch.close)
        self.changes.attribute(sys, "excepthook", failure.excepthook(self.fail))
        atexit.register(self._end_with_process)
        self.changes.then(lambda: atexit.unregister(self._end_with_process))

    def _end_with_process(self) -> None:
        """End the job at exit; an exception that has bypassed excepthook counts as a failure."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.fail(error, lambda _error: None)
        self.on_end()

    def _serve_stacks(self) -> None:
        """Let `cpudist stacks` find this rank from now on."""
        job = f"{self.world.hosts[0]}:{self.rendezvous.port}"
        name = name_of(self.world)
        try:
            self._stacks = StackServer(
                job, self.world.rank, self.world.size, name, lambda: summary(self._status(at_end=False))
            )
        except OSError as error:
            say(f"warning: cpudist stacks will not find {name}: {error.strerror}")
            return
        self.changes.then(self._stacks.stop)

    def _show_stacks(self) -> None:
        if self._stacks is not None:
            self._stacks.show()

    def _status(self, *, at_end: bool) -> RankStatus:
        pace = None if self.pace is None else self.pace.read(at_end=at_end)
        return status_of(self.world, self.backend, pace, at_end=at_end)
