"""The ranks that write or read a checkpoint together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from cpudist.console import first_line
from cpudist.errors import UserError

T = TypeVar("T")


class Ranks:
    """The ranks of a process group, or this process alone where there is none.

    Attributes:
        group: the process group; None: the default one.
        alone: whether there is no process group.
        rank, size: this process's place.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.alone = not dist.is_initialized()
        self.rank = 0 if self.alone else dist.get_rank()
        self.size = 1 if self.alone else dist.get_world_size()

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order; every rank calls it."""
        if self.alone:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def each(self, work: Callable[[], T]) -> list[T]:
        """Return the results of `work` on all ranks, once all have done it; it must not communicate.

        Raises:
            UserError: `work` has failed on a rank, named in the message; this rank's own error comes first.
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
        """Run `work` on rank 0 and return its result on all ranks; errors as in `each`."""
        return self.each(work if self.rank == 0 else lambda: None)[0]  # type: ignore[return-value]
