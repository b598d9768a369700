"""Save a checkpoint of Trainer or of a user's own loop: ranks write into a staging directory, then publish it.

`Background` writes one checkpoint at a time in a thread, while the training continues. The thread has its own process
group, because collectives of two threads in one group would mix. It is a group of gloo, which waits without polling.
Its timeout is a day, so that a slow disk does not look like a hanging collective.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from cpudist.backends.process_group import BACKGROUND
from cpudist.checkpoints import folders
from cpudist.console import first_line
from cpudist.errors import UserError
from cpudist.job import current

T = TypeVar("T")

_LIMIT = timedelta(days=1)
_NICE = 15  # Nice value: beside a thread of normal priority, this one gets a thirtieth of a core.


class Ranks:
    """The ranks of a process group, or only this process if there is none.

    Attributes:
        group: the process group; None: the default one.
        rank, size: this process's rank, and the number of ranks.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order; all ranks must call this."""
        if self.size == 1:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def each(self, work: Callable[[], T]) -> list[T]:
        """Run `work`, which must not communicate, and return the results of all ranks.

        If `work` fails on a rank, this rank raises the error, and all others raise a UserError that names the rank.
        """
        value: T | None = None
        failed: Exception | None = None
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - the other ranks wait for the outcome
            failed = error
        outcomes = self.all_gather((value, None if failed is None else first_line(failed)))
        if failed is not None and (self.size == 1 or not isinstance(failed, UserError)):
            raise failed
        for rank, (_, problem) in enumerate(outcomes):
            if problem is not None:
                raise UserError(problem if self.size == 1 else f"rank {rank}: {problem}") from failed
        return [value for value, _ in outcomes]  # type: ignore[misc]  # all have succeeded

    def first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its result on all ranks; for errors see `each`."""
        return self.each(work if self.rank == 0 else lambda: None)[0]  # type: ignore[return-value]


class Publisher:
    """Save checkpoints in `folder`; every rank calls `begin`, writes its part, and calls `complete`.

    If no other job saves there (`alone`), the first `begin` removes the remains of all killed jobs; every other `begin`
    only those of a checkpoint with the same name. `saved` has this process's checkpoints, in the order of saving.
    """

    def __init__(self, folder: Path, alone: bool = True) -> None:
        self.folder = folder
        self.saved: list[Path] = []
        self._clears_all = alone

    def begin(self, name: str, ranks: Ranks, publishes: bool, check: Callable[[], None] = lambda: None) -> Path:
        """Return the folder into which all ranks write the checkpoint `name`.

        The folder is unique to this job and this attempt, because a host that was frozen in an earlier attempt may
        continue to write. One rank of the job `publishes`, or one per host if hosts share no disk; this rank calls
        `check` before anything is written.
        """

        def prepare() -> str:
            if publishes:
                folders.clear(self.folder, "*" if self._clears_all else name)
                check()
            return secrets.token_hex(8)

        token = self._each(ranks, name, prepare)[0]
        self._clears_all = False
        return self.folder / folders.INCOMPLETE / token / name

    def complete(
        self, written: Path, ranks: Ranks, publishes: bool, finish: Callable[[], T], seal: Callable[[list[T]], None]
    ) -> None:
        """Publish the checkpoint after all of it is on the disk.

        `finish` writes the rest of this rank's part and must not communicate. On ranks that publish, `seal` writes the
        last files, from the results of `finish` on all ranks.
        """
        job = current()

        def sync(parts: list[T]) -> None:
            if publishes:
                seal(parts)
            # Only the host that has written files can sync them.
            if (job is None or job.world.local_rank == 0) and written.is_dir():
                folders.sync(written)

        target = self.folder / written.name
        parts = self._each(ranks, target.name, finish)
        self._each(ranks, target.name, lambda: sync(parts))
        # Wait until all ranks have published: a rank that continues may end the job.
        self._each(ranks, target.name, lambda: folders.publish(written, self.folder) if publishes else None)
        if publishes and not target.is_dir():
            raise UserError(f"{written} is missing: does another job save in {self.folder}? give each its own folder")
        self.saved[:] = [*(path for path in self.saved if path != target), target]
        if job is not None:
            job.record.checkpoint = target.name

    @contextmanager
    def refusing_full_disk(self, name: str) -> Iterator[None]:
        """Convert disk errors to `UserError` in a block that writes part of checkpoint `name` and waits for no rank."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            full = folders.why_full(error, self.folder)
            if full is None and not isinstance(error, OSError):
                raise
            folders.clear(self.folder, name)  # frees space for the run record
            kept = f"{self.saved[-1]} is complete" if self.saved else "none was saved before"
            remedy = "make room, keep fewer checkpoints, or save elsewhere" if full else "save elsewhere"
            raise UserError(f"cannot save {self.folder / name}: {full or error}; {kept}; {remedy}") from error

    def _each(self, ranks: Ranks, name: str, work: Callable[[], T]) -> list[T]:
        def refusing_full_disk() -> T:
            with self.refusing_full_disk(name):
                return work()

        return ranks.each(refusing_full_disk)


@cache
def publisher_of(folder: Path) -> Publisher:
    """Return this process's publisher for a folder in which only this job saves."""
    return Publisher(folder)


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
        """Run `work` in a new thread; the interpreter waits for the thread at exit. Call `wait` first."""
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
