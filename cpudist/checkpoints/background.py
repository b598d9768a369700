"""Write one checkpoint at a time in a thread, while the training continues.

The thread has its own process group, because collectives of two threads in one group would mix. It is a group of gloo,
which waits without polling. Its timeout is a day, so that a slow disk does not look like a hanging collective.
"""

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
_NICE = 15  # Nice value: beside a thread of normal priority, this one gets a thirtieth of a core.


class Background:
    """A thread that writes together with the other ranks' threads; every rank calls every method."""

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
        """Run `work` in a new thread; the interpreter waits for it at exit. Call `wait` first."""
        thread = ThreadPoolExecutor(1, "cpudist-checkpoint")
        self._written = thread.submit(_run_aside, work)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the work is done, and raise its error."""
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _run_aside(work: Callable[[], None]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # on Linux this sets a thread's priority
    work()
