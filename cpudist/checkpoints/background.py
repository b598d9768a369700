"""One checkpoint at a time, written by a thread of its own while the training goes on.

It has a process group of its own: collectives of two threads in one group would mix. The group is gloo's, which waits
without polling, and has a timeout of a day: a slow disk must not look like a hanging collective.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from cpudist.backends.process_group import BACKGROUND
from cpudist.checkpoints.publishing import Ranks
from cpudist.job import current

_LIMIT = timedelta(days=1)
_NICE = 15  # next to a thread of normal priority, such a thread gets a thirtieth of a core


class Background:
    """A thread that writes together with other ranks' threads; every rank calls every method."""

    def __init__(self) -> None:
        self._of: Any = None  # the default process group and the job that `_ranks` belong to
        self._ranks: Ranks | None = None
        self._written: Future[None] | None = None

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

    def start(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread of its own, for which the interpreter waits; call `wait` before."""
        thread = ThreadPoolExecutor(1, "cpudist-checkpoint")
        self._written = thread.submit(_run_aside, work)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the work is done.

        Raises:
            UserError: the work has failed; the error that it raised.
        """
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _run_aside(work: Callable[[], None]) -> None:
    """Do `work`, and leave the cores to the training."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # on Linux, of a thread
    work()
