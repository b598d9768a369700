"""One checkpoint at a time, written by a thread of its own while the training goes on.

It has a process group of its own: collectives of two threads in one group would mix. The group is gloo's, which waits
without polling, and has a timeout of a day: a slow disk must not look like a hanging collective.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from cpudist.backends.process_group import BACKGROUND
from cpudist.checkpoints.publishing import Ranks
from cpudist.job import current

_LIMIT = timedelta(days=1)
_NICE = 15  # next to a thread of normal priority, such a thread gets a thirtieth of a core
_BURST, _PERIOD = 0.1, 3.0  # seconds: the thread computes for one burst in a period, a thirtieth of a core


class Background:
    """A thread that writes together with other ranks' threads; every rank calls every method."""

    def __init__(self) -> None:
        self._of: Any = None  # the default process group and the job that `_ranks` belong to
        self._ranks: Ranks | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._hurry = threading.Event()

    def ranks(self) -> Ranks:
        """Return the ranks of the running job with a process group for this thread."""
        job = current()
        of = (dist.group.WORLD if dist.is_initialized() else None, job)
        if self._ranks is None or of != self._of:
            group = None
            if dist.is_initialized():
                group = dist.new_group(backend="gloo", timeout=_LIMIT, group_desc=BACKGROUND)
            self._of, self._ranks = of, Ranks(group)
            if job is not None:
                job.finish_before_end(self.wait)
        return self._ranks

    def start(self, work: Callable[[Callable[[], None]], None]) -> None:
        """Do `work` in a thread of its own; call `wait` before.

        After every few megabytes the work calls the function that it gets, which pauses: the training has the core.
        """
        self._hurry.clear()

        def run() -> None:
            try:
                work(unpaced if _move_aside() else self._paced())
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                self._error = error

        # Not a daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=run, name="cpudist-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done; it no longer pauses.

        Raises:
            UserError: the work has failed; the error that it raised.
        """
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _paced(self) -> Callable[[], None]:
        """Return a function that pauses if this thread has computed for a burst."""
        used = time.thread_time()

        def pause() -> None:
            nonlocal used
            spent = time.thread_time() - used
            if spent < _BURST:
                return
            end = time.monotonic() + _pause(time.time(), spent)
            while threading.main_thread().is_alive():  # at its end the interpreter waits for this thread
                left = end - time.monotonic()
                if left <= 0 or self._hurry.wait(min(left, 1)):
                    break
            used = time.thread_time()

        return pause


def _pause(now: float, spent: float) -> float:
    """Return how long to pause at the time `now` after a burst of `spent` seconds.

    The next burst begins at a multiple of `_PERIOD` of the clock, so at the same time on all ranks. Ranks wait for each
    other, so bursts at different times would delay the training once for each rank.
    """
    return round(now / _PERIOD + spent / _BURST) * _PERIOD - now


def unpaced() -> None:
    """Do not pause: the work has a core of its own, or the training waits for it."""


def _move_aside() -> bool:
    """Leave the cores to the training, except the one that the plan keeps for communication; return if there is one."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # on Linux, of a thread
    job = current()
    pinning = None if job is None else job.pinning
    if pinning is not None and pinning.bound and (cpus := pinning.plan.communication_cpus):
        os.sched_setaffinity(threading.get_native_id(), cpus)
        return True
    return False
