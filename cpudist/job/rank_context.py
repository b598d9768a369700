"""Connect one rank to the others of its job, from the rendezvous to the common end."""

import atexit
import builtins
import math
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from typing import Any, ClassVar, NoReturn

import torch

from cpudist.backends import Backend
from cpudist.console import in_time, is_interactive, say
from cpudist.errors import StartupTimeout
from cpudist.launchers import Launcher
from cpudist.observability.pace import PaceMeter
from cpudist.observability.rank_answers import ask_ranks
from cpudist.observability.stack_server import StackServer
from cpudist.patching.undo import Changes
from cpudist.rendezvous import StoreGroup, connect, gather
from cpudist.store import Connection, StoreLost
from cpudist.supervision import failure
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.rank_status import RankStatus, published, status_of, user_line
from cpudist.supervision.rank_texts import last_seen, summary
from cpudist.supervision.watch import GRACE_SECONDS, RanksMissing, Watch
from cpudist.world import elsewhere, gather_rank_info, name_of

_STORE_SECONDS = 5.0
_TESTED_TORCH = "2.15"


def untested_torch() -> str | None:
    """Return a warning if torch is newer than the newest tested version; None otherwise."""
    newer = torch.__version__ > f"{_TESTED_TORCH}.99"
    return f"cpudist was not tested with torch {torch.__version__}, only up to {_TESTED_TORCH}" if newer else None


class _Exit(SystemExit):
    """Raised by `sys.exit` and `exit` in a job; records the exit status, which functions of `atexit` cannot read."""

    uncaught: ClassVar[Any] = None  # the status that has ended the interpreter, not one that the script has handled

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # dropped by the interpreter itself, just before the functions of `atexit`
            _Exit.uncaught = self.code


def _exit(status: Any = None, /) -> NoReturn:
    in_main = threading.current_thread() is threading.main_thread()
    raise (_Exit if in_main else SystemExit)(status)  # in a thread a subclass would print a traceback


class RankContext:
    """Connects this rank to the other ranks of its job, and ends it together with them.

    Attributes:
        world: this rank's place among the others; its `backend` is empty.
        members: each rank's published description of itself, in rank order.

    Args and errors are those of `connect`; `timeout` is also the initial value of the attribute.
    """

    def __init__(
        self, launcher: Launcher, attempt: str, timeout: float, interface: str | None, changes: Changes
    ) -> None:
        self.launcher = launcher
        self.changes = changes
        # The limit of every collective and every wait in the store, in seconds; see `Job.set_timeout`.
        self.timeout = timeout
        self.backend: Backend | None = None  # reports the calls that are under way; None until it has started
        self.pace: PaceMeter | None = None  # reads this rank's pace; None until the backend has started
        # Called on rank 0 with the exit status, before rank 0 ends because of a failure.
        self.on_failure: Callable[[int], None] = lambda _status: None
        self.started = threading.Event()  # set once the job has started; from then on `on_failure` records a failure
        # Called when the process exits before the job was shut down; it waits for the other ranks.
        self.on_end: Callable[[], None] = self.wait_for_all
        # Functions that wait for background work, such as saving, before the job ends.
        self.unfinished: list[Callable[[], None]] = []
        # Ends this rank together with the others; None in a notebook and in a job of one process.
        self.watch: Watch | None = None
        self.stacks: StackServer | None = None  # lets `cpudist stacks` find this rank; None if its name is taken
        self._line = ""
        self._placement = launcher.placement()
        self.rendezvous = connect(launcher.rendezvous(), self._placement, attempt, timeout, interface)
        changes.then(self.rendezvous.close)
        self.world, self.members = gather_rank_info(launcher, is_interactive(), self.all_gather)
        if self.world.rank == 0:
            misplaced = elsewhere(self.members, self.world, launcher.requested_nodes)
            lacking = next(filter(None, (launcher.lacking(it.host, it.not_passed_on) for it in self.members)), "")
            for doubt in filter(None, (launcher.warning, misplaced, lacking, untested_torch())):
                say(f"warning: {doubt}")
        self.heartbeat = Heartbeat(self.world.size, self.rendezvous.address, timeout)
        changes.attribute(gather, "whereabouts", self._whereabouts)
        changes.attribute(gather, "silent", self._silent)
        changes.then(self.heartbeat.stop)
        # Whether a rank runs in a notebook or an interactive session.
        self.interactive = any(member.interactive for member in self.members)
        if not self.interactive:
            self._watch_the_others()
        self._serve_stacks()

    def all_gather(self, key: str, value: str) -> list[str]:
        """Publish this rank's value under a new key and return the values of all ranks; see `StoreGroup`."""
        group = StoreGroup(self.rendezvous.store, self._placement.rank, self._placement.size, self.timeout)
        return group.all_gather(f"init/{key}", value)

    def statuses(self, seconds: float = math.inf) -> dict[int, RankStatus]:
        """Return each rank's newest status, if it is not older than `seconds`; any thread may call this."""
        if self.rendezvous.address is None:
            return {0: self._status(at_end=False)}
        with suppress(StoreLost, StartupTimeout), closing(Connection(self.rendezvous.address, _STORE_SECONDS)) as store:
            return published(store, self.world.size, seconds)
        return {}

    def show_stacks_of(self, ranks: Collection[int]) -> list[int]:
        """Write the stacks of these ranks of this host, which may hold Python's lock; return those that were found."""
        asked = ask_ranks(job=self.stacks.job) if self.stacks is not None and ranks else []
        found = [one for one in asked if one.address.rank in ranks]
        for one in found:
            say(one.text.rstrip())
        return [one.address.rank for one in found]

    def wait_for_all(self) -> None:
        """Wait until all ranks have finished; does nothing a second time."""
        for finish in self.unfinished:
            finish()
        if self.watch is not None:
            try:
                self.watch.finish()
            except RanksMissing as error:
                self.fail(error, lambda _error: None)

    def fail(
        self, error: BaseException, show: failure.Show = traceback.print_exception, rank: int | None = None
    ) -> NoReturn:
        """End the job on every rank because of `error`; see `failure.fail`."""
        failure.fail(error, self.watch, show, rank, lambda status: self.on_failure(status))

    def close_in_child(self) -> None:
        """Close all connections in a forked child; it is not a rank, so its exit must not end the job."""
        if self.stacks is not None:
            self.stacks.close()
            self.stacks = None
        self.heartbeat.close_in_child()
        if self.watch is not None:
            self.watch.close_in_child()
            self.watch = None
            sys.excepthook = sys.__excepthook__
            atexit.unregister(self._end_with_process)
        if self.rendezvous.server is not None:
            self.rendezvous.server.close_in_child()

    def _whereabouts(self) -> dict[int, str]:
        """Return the host of each rank, and where it was last."""
        seen = {rank: f", {last_seen(place)}" for rank, place in self.statuses().items()}
        return {rank: f"{member.host}{seen.get(rank, '')}" for rank, member in enumerate(self.members)}

    def _silent(self) -> list[int]:
        """Return the ranks that do not answer; none where no rank publishes its status."""
        answering = self.statuses(self.heartbeat.answer_seconds)
        return [rank for rank in range(self.world.size) if answering and rank not in answering]

    def _record_failure(self, status: int) -> None:
        """Call `on_failure`; first wait a little for the start of the job, or the record would still say "running"."""
        if threading.current_thread() is not threading.main_thread():
            self.started.wait(GRACE_SECONDS)
        in_time(lambda: self.on_failure(status), GRACE_SECONDS)  # its file system may hang

    def _watch_the_others(self) -> None:
        if self.rendezvous.address is not None:
            hosts = [member.host for member in self.members]
            self.watch = Watch(
                self.world, hosts, self.rendezvous.address, self._status, self.heartbeat, lambda: self.timeout
            )
            self.watch.on_failure = self._record_failure
            self.watch.waiting_agent = self.launcher.waiting_agent
            self.changes.then(self.watch.close)
        self.changes.attribute(sys, "excepthook", failure.excepthook(self.fail))
        for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
            self.changes.attribute(module, name, _exit)
        self.end_first()
        self.changes.then(lambda: atexit.unregister(self._end_with_process))
        self._report_aborts()

    def end_first(self) -> None:
        """Register the exit function last, so that it runs first and publishes the end before ccl leaves its groups."""
        if not self.interactive:
            atexit.unregister(self._end_with_process)
            atexit.register(self._end_with_process)

    def _report_aborts(self) -> None:
        """Report a script's `MPI.COMM_WORLD.Abort`: MPI ends all ranks at once, so any of them could be blamed."""
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized():
            return
        fail = self.fail

        class World(mpi.Intracomm):  # type: ignore[name-defined,misc]
            def Abort(self, errorcode: int = 0) -> NoReturn:  # noqa: N802 - mpi4py's name
                fail(SystemExit(errorcode or 1))

        self.changes.attribute(mpi, "COMM_WORLD", World(mpi.COMM_WORLD))

    def _end_with_process(self) -> None:
        """End the job at exit; an exception that has bypassed excepthook, or an exit status, counts as a failure."""
        error = getattr(sys, "last_value", None) or (SystemExit(_Exit.uncaught) if _Exit.uncaught else None)
        if isinstance(error, BaseException):
            self.fail(error, lambda _error: None)
        self.on_end()

    def _serve_stacks(self) -> None:
        job = f"{self.world.hosts[0]}:{self.rendezvous.port}"
        name = name_of(self.world)
        try:
            self.stacks = StackServer(
                job, self.world.rank, self.world.size, name, lambda: summary(self._status(at_end=False))
            )
        except OSError as error:
            say(f"warning: cpudist stacks will not find {name}: {error.strerror}")
            return
        self.changes.then(self.stacks.stop)

    def note_line(self) -> None:
        """Note the line of the user's code in the main thread; it is reported until the next one is known."""
        self._line = user_line() or self._line

    def _status(self, *, at_end: bool) -> RankStatus:
        pace = None if self.pace is None else self.pace.read(at_end=at_end)
        self.note_line()
        return status_of(self.world, self.backend, pace, self._line, at_end=at_end)
