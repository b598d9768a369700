"""What the ranks know of each other while the job runs: one has failed, is lost, keeps others waiting, has finished.

A thread on every rank tells the job's store once a second where the rank is, and is told at once what happens
elsewhere. It is what ends the other ranks where no launcher does: under srun without MPI, in pods, on the other hosts
of a torchrun job, and on both sides of a link that is down.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from cpudist.console import say
from cpudist.job import stall
from cpudist.job.ending import end_process
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
_SILENT_BEATS = 4  # of a rank that does not answer
_BEHIND_SECONDS = 1.0  # the failed rank goes ahead: launchers blame the one that ends first
GRACE_SECONDS = 3.0  # what one rank leaves another to print or write before it ends the job


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
        self._store = Connection(place, _STORE_SECONDS)
        self._watched = Connection(place, _STORE_SECONDS)
        self._watched.will(_LOST, str(world.rank))
        self._beat = max(_BEAT_SECONDS, world.size / _BEATS_PER_SECOND)
        self._stop = threading.Event()
        self._at_end = False
        self._host_finished = False
        self._told: set[str] = set()  # the calls whose stall has been reported
        self._thread = threading.Thread(target=self._look, name="cpudist-watch", daemon=True)
        self._thread.start()

    def claim(self) -> bool:
        """Whether this rank is the first to fail, and so the one that reports it."""
        self.stop()
        try:
            return self._store.add(_CLAIMS, 1) == 1
        except StoreLost:  # better twice on screen than lost
            return True

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
            status = self._reported_status(status)
        self._leave(self._store, status, first=reported)

    def finish(self) -> None:
        """Wait for all ranks to succeed: none leaves while others may fail, and rank 0, with the store, is last."""
        if self._stop.is_set():
            return
        self._at_end = True
        with contextlib.suppress(StoreLost):  # some rank has not finished in time, or has left at its own timeout
            if self._store.add(_FINISHED, 1) == self.world.size:
                self._store.set({_EVERYONE_FINISHED: b"1"})
            if self.world.rank == 0:
                self._store.set({_HOST_FINISHED: b"1"})
                self._store.wait_all([_EVERYONE_FINISHED], self.timeout)
                self.stop()
                self._store.set({_MAY_LEAVE: b"1"})
                self._store.wait_all([_LEFT.format(rank=rank) for rank in range(1, self.world.size)], _STORE_SECONDS)
            else:
                self._store.wait_all([_MAY_LEAVE], self.timeout)
                self.stop()
                self._store.set({_LEFT.format(rank=self.world.rank): b"1"})
        self.stop()

    def stop(self) -> None:
        """End the thread. If it is ending this process just now, this does not return."""
        if not self._stop.is_set():
            self._stop.set()
            with contextlib.suppress(StoreLost):
                self._store.withdraw(_LOST, str(self.world.rank))
            self._watched.interrupt()
        self._thread.join(4 * _STORE_SECONDS)

    def disown(self) -> None:
        """In a forked child: let go of the connections, which would otherwise outlive this rank."""
        self._store.close()
        self._watched.close()

    # The thread

    def _look(self) -> None:
        try:
            while not self._stop.is_set():
                self._say_where()
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
            end_process(1)

    def _say_where(self) -> None:
        """Tell where this rank is, and, if it has waited for a third of the timeout, ask who is missing."""
        place = here(self.world, self.backend, at_end=self._at_end)
        self._watched.set({_HERE.format(rank=self.world.rank): place.to_json().encode()})
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
        """A rank has failed and said so, or is lost: then the first rank to claim it says so."""
        reported = self._watched.get([_REPORTED])
        if reported is None and self._watched.add(_CLAIMS, 1) == 1:
            self._say_who_is_lost()
            self._watched.set({_REPORTED: b"1"})
            self._leave(self._watched, 1, first=True)
        self._watched.wait_all([_REPORTED], GRACE_SECONDS)
        reported = self._watched.get([_REPORTED])
        self._leave(self._watched, int(reported[0]) if reported else 1, first=False)

    def _say_who_is_lost(self) -> None:
        lines = self._watched.get([_LOST]) or [b""]
        losses = [Loss.from_line(line) for line in lines[0].decode().splitlines()]
        for sentence in explain_losses(losses, self._last_seen(self._watched), self._hosts):
            say(f"{sentence}; ending the job")

    # What the others have told

    def _last_seen(self, store: Connection) -> dict[int, Whereabouts]:
        keys = {rank: _HERE.format(rank=rank) for rank in range(self.world.size)}
        told = [rank for rank, age in zip(keys, store.ages([*keys.values()]), strict=True) if age is not None]
        values = store.get([keys[rank] for rank in told]) or []
        return {rank: Whereabouts.from_json(text.decode()) for rank, text in zip(told, values, strict=True)}

    def _places(self, store: Connection) -> dict[int, Whereabouts | None]:
        """Where every rank is; None for one that has not said so lately, as it did before."""
        ages = store.ages([_HERE.format(rank=rank) for rank in range(self.world.size)])
        seen = self._last_seen(store)
        late = _SILENT_BEATS * self._beat
        return {rank: seen.get(rank) if age is not None and age < late else None for rank, age in enumerate(ages)}

    def _leave(self, store: Connection, status: int, *, first: bool) -> NoReturn:
        with contextlib.suppress(StoreLost):
            if self.world.rank == 0:
                if self.on_failure is not None:
                    self.on_failure()
                store.set({_RECORDED: b"1"})
            else:
                store.wait_all([_RECORDED], GRACE_SECONDS)
        if not first:
            time.sleep(_BEHIND_SECONDS)
        end_process(status)

    def _reported_status(self, otherwise: int) -> int:
        with contextlib.suppress(StoreLost):
            if self._store.wait_all([_REPORTED], GRACE_SECONDS):
                return int((self._store.get([_REPORTED]) or [b"1"])[0])
        return otherwise


def name_of(world: World) -> str:
    """A rank as messages name it."""
    return f"rank {world.rank} on {world.hosts[world.node_rank]}"
