"""How the ranks tell each other, through the job's store, that one has failed or that all have finished.

A small thread on every rank looks at the store twice a second. It is what ends the other ranks where no
launcher does: under srun without MPI, in pods, on the other hosts of a torchrun job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from cpudist.console import say
from cpudist.waiting import poll

if TYPE_CHECKING:
    from cpudist.world import World

_CLAIMS = "cpudist/failure/claims"  # counter; whoever makes it 1 reports
_REPORTED = "cpudist/failure/reported"  # the exit status, set once the report is on screen
_RECORDED = "cpudist/failure/recorded"  # rank 0 has done what it does in a failure
_FINISHED = "cpudist/finished"  # counter of the ranks that came to their end
_ALL_FINISHED = "cpudist/finished/all"  # set by rank 0
_LEFT = "cpudist/left/{rank}"  # that rank uses the store no more
_HOST_FINISHED = "cpudist/finished/0"  # rank 0, whose process may hold the store, came to its end

_STORE_SECONDS = 5.0  # a store that takes longer to answer counts as gone
_LOOK_SECONDS = 0.5
_BEHIND_SECONDS = 1.0  # the failed rank goes ahead: launchers blame the one that ends first
GRACE_SECONDS = 3.0  # what one rank leaves another to print or write before it ends the job


class Watch:
    """This rank's part in ending the job together, made right after the ranks have met.

    Args:
        world: this rank's place in the job.
        store: the job's; every rank's watch uses it through connections of its own.
        timeout: seconds that `finish` gives the other ranks to come to their end; may be changed.
    """

    def __init__(self, world: World, store: Any, timeout: float) -> None:
        self.world = world
        self.timeout = timeout
        # Own connections: the main thread may be blocked in the job's store, or in the other one of these.
        self._store = _connect(store)
        self._watched = _connect(store)
        self._stop = threading.Event()
        self._host_finished = False
        self.on_failure: Callable[[], None] | None = None  # what rank 0 does before the job ends
        self._thread = threading.Thread(target=self._look, name="cpudist-watch", daemon=True)
        self._thread.start()

    def claim(self) -> bool:
        """Whether this rank is the first to fail, and so the one that reports it."""
        self.stop()
        try:
            return bool(self._store.add(_CLAIMS, 1) == 1)
        except RuntimeError:  # the store is gone: better twice on screen than lost
            return True

    def end_job(self, status: int, *, reported: bool) -> NoReturn:
        """End this process, once the claiming rank has reported and rank 0 has written the record."""
        if reported:
            with contextlib.suppress(RuntimeError):
                self._store.set(_REPORTED, str(status))
        else:
            status = self._wait(_REPORTED, status)
        self._leave(self._store, status, first=reported)

    def finish(self) -> None:
        """Wait for all ranks to succeed: none leaves while others may fail, and rank 0, with the store, is last."""
        if self._stop.is_set():
            return
        with contextlib.suppress(RuntimeError):  # some rank has not finished in time, or has left at its own timeout
            self._store.add(_FINISHED, 1)
            if self.world.rank == 0:
                self._store.set(_HOST_FINISHED, "1")
                poll(lambda: self._store.add(_FINISHED, 0) == self.world.size, self.timeout)
                self.stop()
                self._store.set(_ALL_FINISHED, "1")
                left = [_LEFT.format(rank=rank) for rank in range(1, self.world.size)]
                poll(lambda: not left or self._store.check(left), _STORE_SECONDS)
            else:
                self._store.wait([_ALL_FINISHED], timedelta(seconds=self.timeout))
                self.stop()
                self._store.set(_LEFT.format(rank=self.world.rank), "1")  # the last word: it awaits no answer
        self.stop()

    def stop(self) -> None:
        """End the thread. If it is ending this process just now, this does not return."""
        self._stop.set()
        self._thread.join(2 * _STORE_SECONDS)

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                if self._watched.check([_REPORTED]):
                    self._leave(self._watched, int(self._watched.get(_REPORTED)), first=False)
                self._host_finished = self._host_finished or self._watched.check([_HOST_FINISHED])
            except RuntimeError:
                if self._stop.is_set() or self._host_finished:
                    return
                say(f"{name_of(self.world)} lost the job's store: rank 0 or its launcher has died; ending")
                end_process(1)

    def _leave(self, store: Any, status: int, *, first: bool) -> NoReturn:
        if self.world.rank == 0:
            if self.on_failure is not None:
                self.on_failure()
            with contextlib.suppress(RuntimeError):
                store.set(_RECORDED, "1")
        else:
            with contextlib.suppress(RuntimeError):
                store.wait([_RECORDED], timedelta(seconds=GRACE_SECONDS))
        if not first:
            time.sleep(_BEHIND_SECONDS)
        end_process(status)

    def _wait(self, key: str, otherwise: int) -> int:
        try:
            self._store.wait([key], timedelta(seconds=GRACE_SECONDS))
            return int(self._store.get(key))
        except RuntimeError:
            return otherwise


def end_process(status: int) -> NoReturn:
    """End this process at once, without finalizers, which could wait for a lost peer. Under MPI this ends the job."""
    sys.stdout.flush()
    sys.stderr.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        # The reason is on screen by now; MPI's own lines, one for every rank that aborts, would hide it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        mpi.COMM_WORLD.Abort(status)
    os._exit(status)


def name_of(world: World) -> str:
    """A rank as messages name it."""
    return f"rank {world.rank} on {world.hosts[world.node_rank]}"


def _connect(store: Any) -> Any:
    connection = store.clone()
    connection.set_timeout(timedelta(seconds=_STORE_SECONDS))
    return connection
