"""What the ranks know of each other while the job runs: one has failed, is lost, keeps others waiting, has finished.

A thread on every rank tells the job's store once a second where the rank is, and is told at once what happens
elsewhere. It is what ends the other ranks where no launcher does: under srun without MPI, in pods, on the other hosts
of a torchrun job, and on both sides of a link that is down.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from cpudist.console import say
from cpudist.job import stall
from cpudist.job.abort import abort
from cpudist.job.lost import Loss, explain_losses
from cpudist.job.whereabouts import Whereabouts, here
from cpudist.rendezvous import Address, Connection, StoreLost

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.backends.calls import Call
    from cpudist.world import World

_CLAIMS = "failure/claims"  # counter; whoever makes it 1 reports
_REPORTED = "failure/reported"  # the exit status, set once the report is on screen
_RECORDED = "failure/recorded"  # rank 0 has done what it does in a failure
_LOST = "lost"  # lines of the server's: which rank's connection broke, and how
_HERE = "here/{rank}"  # where that rank is
_STALLED = "stalled/{call}"  # counter; whoever makes it 1 reports that call
_FINISHED = "finished"  # counter of the ranks that came to their end
_EVERYONE_FINISHED = "finished/everyone"
_HOST_FINISHED = "finished/0"  # rank 0, whose process may serve the store, came to its end
_MAY_LEAVE = "finished/leave"  # set by rank 0
_LEFT = "left/{rank}"  # that rank uses the store no more

_STORE_SECONDS = 5.0
_BEAT_SECONDS = 1.0
_BEATS_PER_SECOND = 500.0  # at most, of all ranks together: what one store bears easily (docs/scale.md)
_MOST_NAMES = 3  # of ranks in one message
_SILENT_BEATS = 4  # of a rank that does not answer
_BEHIND_SECONDS = 1.0  # the failed rank goes ahead: launchers blame the one that ends first
GRACE_SECONDS = 3.0  # what one rank leaves another to print or write before it ends the job


class RanksMissing(RuntimeError):
    """Ranks have not come to their end in time; the message names them."""


class Watch:
    """This rank's part in ending the job together, made right after the ranks have met.

    Args:
        world: this rank's place in the job.
        hosts: the host's name of each rank.
        place: the job's store.
        timeout: seconds that a collective may take, and that `finish` gives the other ranks; may be changed.
    """

    def __init__(self, world: World, hosts: Sequence[str], place: Address, timeout: float) -> None:
        self.world = world
        self.timeout = timeout
        self.backend: Backend | None = None
        self.on_failure: Callable[[], None] | None = None  # what rank 0 does before the job ends
        self._hosts = hosts
        # Connections of its own: the main thread may be blocked in the job's store, or in the other one of these.
        self._store = Connection(place, timeout)
        self._watched = Connection(place, timeout)
        self._store.will(_LOST, str(world.rank))  # this one lasts until `finish`, or the end of the process
        self._leaving = threading.Lock()
        self._confused = False
        self._beat = max(_BEAT_SECONDS, world.size / _BEATS_PER_SECOND)
        self._stop = threading.Event()
        self._at_end = False
        self._host_finished = False
        self._told: set[str] = set()  # the calls whose stall has been reported
        self._thread = threading.Thread(target=self._look, name="cpudist-watch", daemon=True)
        self._thread.start()

    def claim(self) -> bool:
        """Whether this rank is the first to fail, and so the one that reports it; the thread then does nothing more."""
        try:
            first = self._store.add(_CLAIMS, 1) == 1
        except StoreLost:  # better twice on screen than lost
            first = True
        if first:
            self._interrupt()
        return first

    def who_is_missing(self) -> list[str]:
        """Who keeps the others waiting, in sentences; asked by the rank that has claimed the failure."""
        try:
            return stall.explain(self._places(self._store), self._hosts)
        except StoreLost:
            return []

    def end_job(self, status: int, *, reported: bool) -> NoReturn:
        """End this process, once the claiming rank has reported and rank 0 has written the record."""
        if reported:
            with contextlib.suppress(StoreLost):
                self._store.set({_REPORTED: str(status).encode()})
        else:
            with contextlib.suppress(StoreLost):
                self._store.wait_all([_REPORTED], GRACE_SECONDS)
                status = _reported_status(self._store, status)
        self._leave(self._store, status, first=reported)

    def finish(self) -> None:
        """Wait for all ranks to succeed: none leaves while others may fail, and rank 0, with the store, is last.

        Raises:
            RanksMissing: on rank 0, others have not come to their end within the timeout.
        """
        if self._stop.is_set():
            return
        self._at_end = True
        with contextlib.suppress(StoreLost):  # the thread says so, and ends this process
            if self._store.add(_FINISHED, 1) == self.world.size:
                self._store.set({_EVERYONE_FINISHED: b"1"})
            if self.world.rank == 0:
                self._store.set({_HOST_FINISHED: b"1"})
                if not self._store.wait_all([_EVERYONE_FINISHED], self.timeout):
                    raise RanksMissing("; ".join(self._who_has_not_finished()))
                self.stop()
                self._store.set({_MAY_LEAVE: b"1"})
                self._store.wait_all([_LEFT.format(rank=rank) for rank in range(1, self.world.size)], _STORE_SECONDS)
            else:
                # Rank 0 alone may have much left to do at the end. If it is lost, the thread ends this process.
                while not self._store.wait_all([_MAY_LEAVE], self.timeout):
                    if self.world.rank == 1:
                        say("; ".join(self._who_has_not_finished()) or "all ranks have finished but rank 0 goes on")
                self.stop()
                self._store.set({_LEFT.format(rank=self.world.rank): b"1"})
        self.stop()

    def stop(self) -> None:
        """End the thread. If it is ending this process just now, this does not return."""
        with contextlib.suppress(StoreLost):
            self._store.withdraw(_LOST, str(self.world.rank))
        self._interrupt()

    def _interrupt(self) -> None:
        self._stop.set()
        self._watched.interrupt()
        self._thread.join(2 * _STORE_SECONDS)

    def disown(self) -> None:
        """In a forked child: let go of the connections, which would otherwise outlive this rank."""
        self._store.close()
        self._watched.close()

    # The thread

    def _look(self) -> None:
        try:
            while not self._stop.is_set():
                self._try_to_say_where()
                if self._watched.wait_any([_REPORTED, _LOST], self._beat):
                    self._end_with_the_others()
                self._host_finished = self._host_finished or self._watched.check([_HOST_FINISHED])
        except StoreLost:
            if self._stop.is_set() or self._host_finished:
                return
            if self.world.local_rank == 0:
                say(
                    f"{name_of(self.world)} lost the job's store, which rank 0 on {self._hosts[0]} keeps: that host is "
                    "down or cut off, or the job was killed there; ending"
                )
            abort(1)

    def _try_to_say_where(self) -> None:
        """What is only told for the sake of reports must not cost this rank its watch."""
        try:
            self._say_where()
        except StoreLost:
            raise
        except Exception as error:  # noqa: BLE001
            if not self._confused:
                say(f"warning: {name_of(self.world)} cannot say where it is: {error!r}")
            self._confused = True

    def _say_where(self) -> None:
        """Tell where this rank is, and, if it has waited for a third of the timeout, ask who is missing."""
        place = here(self.world, self.backend, at_end=self._at_end)
        self._watched.set({_HERE.format(rank=self.world.rank): place.to_json().encode()})
        (loss,) = explain_losses([Loss(self.world.rank, "closed")], {self.world.rank: place}, self._hosts)
        self._watched.last_words(_LOST, str(self.world.rank), _CLAIMS, f"{loss}; the job is over")
        for call in place.under_way[:1]:
            if call.seconds > self.timeout / 3:
                self._report_stall(call)

    def _report_stall(self, call: Call) -> None:
        key = _STALLED.format(call=f"{call.group}/{call.sequence}/{call.peer}")
        if key in self._told:
            return
        self._told.add(key)
        if self._watched.add(key, 1) == 1:
            for sentence in stall.explain(self._places(self._watched), self._hosts):
                say(f"waiting for {call.seconds:.0f} s of {self.timeout:g}: {sentence}")

    def _end_with_the_others(self) -> NoReturn:
        """A rank has failed and said so, or is lost: then a rank says it, the first to claim it.

        If that one is lost itself before it has said anything, the next one to claim it does.
        """
        try:
            place = 0
            if not self._watched.check([_REPORTED]):
                place = self._watched.add(_CLAIMS, 1)
            if place == 1 or (not self._watched.wait_all([_REPORTED], GRACE_SECONDS) and place == 2):
                self._say_who_is_lost()
                self._watched.set({_REPORTED: b"1"})
                self._leave(self._watched, 1, first=True)
            self._leave(self._watched, _reported_status(self._watched, 1), first=False)
        except StoreLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, this rank must not go on alone
            say(f"{name_of(self.world)} ends with the others, and cannot say why: {error!r}")
            abort(1)

    def _say_who_is_lost(self) -> None:
        for sentence in explain_losses(_losses(self._watched), self._last_seen(self._watched), self._hosts):
            say(f"{sentence}; ending the job")

    # What the others have told

    def _last_seen(self, store: Connection, seconds: float = math.inf) -> dict[int, Whereabouts]:
        """Where the ranks were, of those that have said so within `seconds`."""
        keys = [_HERE.format(rank=rank) for rank in range(self.world.size)]
        told = [rank for rank, age in enumerate(store.ages(keys)) if age is not None and age < seconds]
        values = store.get([keys[rank] for rank in told]) or []
        return {rank: Whereabouts.from_json(text.decode()) for rank, text in zip(told, values, strict=True)}

    def _places(self, store: Connection) -> dict[int, Whereabouts | None]:
        """Where every rank is; None for one that has not said so lately, as it did before."""
        seen = self._last_seen(store, _SILENT_BEATS * self._beat)
        return {rank: seen.get(rank) for rank in range(self.world.size)}

    def _who_has_not_finished(self) -> list[str]:
        seen = self._last_seen(self._store)
        late = [rank for rank in range(self.world.size) if rank not in seen or not seen[rank].at_end]
        places = [f"rank {rank} ({self._hosts[rank]}), {stall.last_seen(seen[rank])}" for rank in late if rank in seen]
        return [f"after {self.timeout:g} s at the end still waiting for {place}" for place in places[:_MOST_NAMES]]

    def _leave(self, store: Connection, status: int, *, first: bool) -> NoReturn:
        self._leaving.acquire()  # once; the other thread of the two that may come here waits for the end
        with contextlib.suppress(StoreLost):
            if self.world.rank == 0:
                if self.on_failure is not None:
                    self.on_failure()
                store.set({_RECORDED: b"1"})
            elif all(loss.rank != 0 for loss in _losses(store)):
                store.wait_all([_RECORDED], GRACE_SECONDS)
        if not first:
            time.sleep(_BEHIND_SECONDS)
        abort(status)


def _losses(store: Connection) -> list[Loss]:
    """Which ranks are lost, in the order in which the store has noticed."""
    lines = store.get([_LOST]) or [b""]
    return [Loss.from_line(line) for line in lines[0].decode().splitlines()]


def _reported_status(store: Connection, otherwise: int) -> int:
    """The exit status that the rank that has reported has told."""
    reported = store.get([_REPORTED])
    return int(reported[0]) if reported else otherwise


def name_of(world: World) -> str:
    """A rank as messages name it."""
    return f"rank {world.rank} on {world.hosts[world.node_rank]}"
