"""End a job in which nothing goes on (`--stall`): every rank writes its stacks first.

A thread on every rank adds the rank's signs of life to a counter of all ranks, once a second. When the counter does not
change for too long, one rank reports it, all write their stacks, and the job ends.

C code that holds Python's interpreter lock stops this thread, too. So the thread keeps putting off a timer of
faulthandler, which runs without that lock, writes the stacks of such a rank and ends it.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.utils.data.dataloader as dataloader
from torch.distributed import DistStoreError
from torch.optim.optimizer import register_optimizer_step_post_hook

from cpudist.console import say
from cpudist.errors import StartupTimeout
from cpudist.job.abort import abort
from cpudist.job.rank_status import heartbeat
from cpudist.job.watch import CLAIMS, REPORTED
from cpudist.store import StoreLost

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.changes import Changes
    from cpudist.world import World

_SIGNS = "stall/signs"  # counter of all ranks' signs of life; 0 before the first step of any rank
_SHOWN = "stall/shown/{rank}"  # that rank has written its stacks
_SHOW_SECONDS = 2.0  # for a rank to write its stacks
_STOP_SECONDS = 10.0  # for a request to the store

_timer = threading.Lock()
_armed = False


class Stall:
    """Ends the job when no rank has shown a sign of life for a time, from the first step on.

    Signs of life are steps of torch's optimizers, collectives and batches of torch's data loaders.

    Args:
        seconds: the time.
        world: this rank's place in the job.
        store: the job's store.
        progress: returns another value after a collective has begun or ended, as `Backend.progress` does.
        explain: returns sentences about ranks that keep others waiting.
        show: writes this rank's stacks.
        before_end: called before the job ends.
        changes: where to note the changes of torch.
    """

    def __init__(
        self,
        seconds: float,
        world: World,
        store: Store,
        progress: Callable[[], object],
        explain: Callable[[], list[str]],
        show: Callable[[], None],
        before_end: Callable[[], None],
        changes: Changes,
    ) -> None:
        self._seconds, self._world, self._store, self._progress = seconds, world, store, progress
        self._explain, self._show, self._before_end = explain, show, before_end
        self._alone = world.size == 1  # or the store is lost
        self._beat_seconds = heartbeat(world.size)
        # The timer fires after the other ranks have noticed the stall; they then wait for the stacks that it writes.
        late = 2 * self._beat_seconds + 1
        self._timer_seconds, self._show_seconds = seconds + late, late + _SHOW_SECONDS
        self._begun = False
        self._seen = 0  # steps and batches
        self._last: object = None  # this rank's signs of life at the last beat
        self._own = self._total = 0
        self._quiet = 0.0  # seconds since any rank's; not by the clock, which runs on while a job is suspended
        self._ending = False  # whether this rank has found the job stalled
        self._stop = threading.Event()
        changes.then(register_optimizer_step_post_hook(self._step).remove)
        iterator = dataloader._BaseDataLoaderIter
        changes.attribute(iterator, "__next__", self._counting(iterator.__next__))
        self._thread = threading.Thread(target=self._run, name="cpudist-stall", daemon=True)
        self._thread.start()
        changes.then(self.stop)

    def stop(self) -> None:
        """Stop looking. If the thread has begun to end the job, this call does not return."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._ending:
            abort(1)
        with _timer:
            _disarm()

    def beat(self) -> bool:
        """Report this rank's signs of life since the last beat; return whether the job has stalled."""
        signs = self._seen, self._progress()
        moved, self._last = self._begun and signs != self._last, signs
        before, self._total = self._total, self._count(moved)
        if self._total == 0:
            return False
        self._put_off_timer()
        self._quiet = 0.0 if self._total != before else self._quiet + self._beat_seconds
        return self._quiet >= self._seconds

    def _step(self, *_: Any) -> None:
        if not self._begun:
            self._begun = True
            self._put_off_timer()
        self._seen += 1

    def _put_off_timer(self) -> None:
        if not self._stop.is_set():
            _arm(self._timer_seconds)

    def _counting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            batch = original(iterator)
            self._seen += 1
            return batch

        return next_batch

    def _count(self, moved: bool) -> int:
        """Add to the counter of all ranks and return the sum; once the store is lost, this rank's own."""
        self._own += moved
        if not self._alone:
            try:
                return self._store.add(_SIGNS, int(moved))
            except (StoreLost, StartupTimeout):  # the watch ends this process, unless rank 0 has finished
                self._alone = True
        return self._own

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._beat_seconds):
                if self.beat():
                    self._end()
                    return
        except Exception as error:  # noqa: BLE001 - a job that works must not end because of it
            say(f"warning: --stall is off on rank {self._world.rank}: {error!r}")
            self._ending = False
            self._stop.set()
            with _timer:
                _disarm()

    def _end(self) -> None:
        """Have all ranks write their stacks, and end the job."""
        self._ending = True
        _arm(2 * self._show_seconds)  # in case that this does not end it
        try:
            first = self._alone or self._store.add(CLAIMS, 1) == 1
            if first:
                say(
                    f"no step, collective or batch for {self._quiet:g} s on any rank (--stall {self._seconds:g}): all "
                    "ranks write their stacks, and the job ends"
                )
            self._show()
            if self._world.rank == 0:
                self._before_end()
            if not self._alone:
                self._store.set(_SHOWN.format(rank=self._world.rank), "1")
                if first:
                    with suppress(DistStoreError):
                        shown = [_SHOWN.format(rank=rank) for rank in range(self._world.size)]
                        self._store.wait(shown, timedelta(seconds=self._show_seconds))
                    for sentence in self._explain():  # after the stacks, so that the cause comes last
                        say(sentence)
                    self._store.set(REPORTED, "1")
                return
        except StoreLost:
            pass
        abort(1)


def _arm(seconds: float) -> None:
    global _armed
    with _timer:
        _armed = True
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # the script may have replaced sys.stderr


def _disarm() -> None:
    global _armed
    if _armed:  # otherwise it may be the script's own
        _armed = False
        faulthandler.cancel_dump_traceback_later()


def _before_fork() -> None:
    """Stop the timer until the next beat: a forked child that exits waits for its thread for ever (CPython 3.11)."""
    _timer.acquire()
    _disarm()


os.register_at_fork(before=_before_fork, after_in_parent=_timer.release, after_in_child=_timer.release)
