"""End a job in which no rank makes progress (`--stall`), after every rank has written its stacks.

At each heartbeat every rank that has shown a sign of life adds 1 to a counter in the store. If the counter does not
change for too long, one rank reports the stall, all ranks write their stacks, and the job ends.

C code that holds Python's interpreter lock (GIL) also stops the heartbeat. Another rank of the host then writes the
stacks of that rank. If there is no other rank, or no launcher kills the rank, a timer of faulthandler writes its stacks
and ends it: the timer needs no GIL, and each heartbeat restarts it.
"""

import faulthandler
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from cpudist.console import say
from cpudist.patching.undo import Changes
from cpudist.store import Connection, StoreLost
from cpudist.supervision.abort import abort
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.step_counter import StepCounter
from cpudist.supervision.watch import CLAIMS, REPORTED
from cpudist.world import World

_SIGNS = "stall/signs"  # counter of all ranks' signs of life; 0 before the first step of any rank
_SHOWN = "stall/shown/{rank}"  # set once this rank has written its stacks
_ASKED = "stall/asked/{rank}"  # counter; the neighbour that makes it 1 asks this rank for its stacks
_SHOW_SECONDS = 2.0  # Time for a rank to write its stacks.
_ASK_SECONDS = 5.0  # Time for asking another rank on the host for its stacks.

_timer = threading.Lock()
_armed = False


@dataclass(eq=False)
class Stall:
    """Ends the job when no rank has shown a sign of life for `seconds`, from the first step on.

    Signs of life are steps of torch's optimizers, collectives and batches of torch's data loaders.
    """

    seconds: float
    world: World
    heartbeat: Heartbeat  # its thread samples the signs of life
    counter: StepCounter  # of this rank's steps and batches
    progress: Callable[[], object]  # returns a value that changes with each collective of this rank
    explain: Callable[[], list[str]]  # returns sentences about ranks that keep others waiting
    show: Callable[[], None]  # writes this rank's stacks
    neighbours: Collection[int]  # the ranks on this host
    # Writes the stacks of some neighbours; returns those that it has found.
    show_others: Callable[[Collection[int]], Collection[int]]
    before_end: Callable[[], None]  # called on rank 0 before it ends in a job without a store
    changes: Changes

    def __post_init__(self) -> None:
        # The timer expires after the other ranks have noticed the stall and asked for the stacks; they end after it.
        self._late = self.heartbeat.answer_seconds / 2 + 1 + _SHOW_SECONDS + _ASK_SECONDS
        self._timer_seconds, self._show_seconds = self.seconds + self._late, self._late + _SHOW_SECONDS
        self._begun = False
        self._last: object = None  # this rank's signs of life at the last beat
        self._own = self._total = 0
        self._quiet = 0.0  # Seconds without a sign, counted in beats: a clock runs on while a job is suspended.
        self._ending = False  # whether this rank has found the job stalled
        self._reports = False  # whether this rank reports the stall
        self.counter.after_step.append(self._step)
        self.changes.then(self.stop)
        self.heartbeat.add(self._beat)

    def stop(self) -> None:
        """Stop sampling. If the job has begun to end, this call does not return."""
        self.heartbeat.stop()
        if self._ending:
            abort(1)
        with _timer:
            _disarm()

    def _beat(self, store: Connection | None) -> None:
        try:
            if self._ending and store is not None:
                self._complete(store)
            elif not self._ending and self.has_stalled(store):
                self._end(store)
        except StoreLost:
            raise
        except Exception as error:  # noqa: BLE001 - an error here must not end a job that works
            say(f"warning: --stall has no effect on rank {self.world.rank}: {error!r}")
            self.heartbeat.remove(self._beat)
            self._begun, self._ending = True, False  # so that a first step does not arm the timer
            with _timer:
                _disarm()

    def has_stalled(self, store: Connection | None) -> bool:
        """Report this rank's signs of life since the last beat; return whether the job has stalled."""
        signs = self.counter.steps, self.counter.batches, self.progress()
        moved, self._last = self._begun and signs != self._last, signs
        self._own += int(moved)
        before, self._total = self._total, self._own if store is None else store.add(_SIGNS, int(moved))
        if self._total == 0:
            return False
        if not self.heartbeat.stopped.is_set():
            _arm(self._timer_seconds)
        self._quiet = 0.0 if self._total != before else self._quiet + self.heartbeat.seconds
        return self._quiet >= self.seconds

    def _step(self, *_: Any) -> None:
        if not self._begun:
            self._begun = True
            _arm(self._timer_seconds)

    def _end(self, store: Connection | None) -> None:
        """Have all ranks write their stacks, and end the job."""
        self._ending = True
        _arm(2 * self._show_seconds)  # ends the rank if the code below does not
        self._reports = store is None or store.add(CLAIMS, 1) == 1
        if self._reports:
            why = f"no step, collective or batch for {self._quiet:g} s on any rank (the limit is {self.seconds:g} s)"
            say(f"{why}: all ranks write their stacks, and the job ends")
        self.show()
        if store is None:
            if self.world.rank == 0:
                self.before_end()
            abort(1)
        store.set({_SHOWN.format(rank=self.world.rank): b"1"})

    def _complete(self, store: Connection) -> None:
        """Write the stacks of neighbours that cannot; report the cause once all stacks are written, or time is up."""
        self._show_seconds -= self.heartbeat.seconds
        if not (self._reports or self.neighbours):
            return
        ages = store.ages([_SHOWN.format(rank=rank) for rank in range(self.world.size)])
        missing = [rank for rank, age in enumerate(ages) if age is None]
        if self._show_seconds < self._late and self.neighbours:
            silent, self.neighbours = [rank for rank in self.neighbours if rank in missing], ()
            asked = [rank for rank in silent if store.add(_ASKED.format(rank=rank), 1) == 1]
            store.set({_SHOWN.format(rank=rank): b"1" for rank in self.show_others(asked)})
        elif self._reports and (self._show_seconds < 0 or not missing):
            self._reports = False
            for sentence in self.explain():
                say(sentence)
            store.set({REPORTED: b"1"})


def _arm(seconds: float) -> None:
    global _armed
    if _timer.acquire(blocking=False):  # skipped while another thread forks; the next beat arms the timer
        try:
            _armed = True
            faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # the script may have replaced sys.stderr
        finally:
            _timer.release()


def _disarm() -> None:
    global _armed
    if _armed:  # otherwise the timer may be the script's own
        _armed = False
        faulthandler.cancel_dump_traceback_later()


def _before_fork() -> None:
    """Stop the timer until the next beat: in CPython 3.11 a forked child waits forever for the timer's thread."""
    _timer.acquire()
    _disarm()


os.register_at_fork(before=_before_fork, after_in_parent=_timer.release, after_in_child=_timer.release)
