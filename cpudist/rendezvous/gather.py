"""All-gather of texts through a store, with a few requests from each rank."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from cpudist.console import first_line, option
from cpudist.errors import StartupTimeout
from cpudist.waiting import announced, poll

if TYPE_CHECKING:
    from torch.distributed import Store

_VERDICT_SECONDS = 5.0  # Extra time after the timeout for rank 0 to publish the missing ranks.
_MOST_NAMES = 20  # Most missing ranks that a message names.

# A job sets these two functions: torch, which creates groups and so waits here, passes no reference to the job.
# Returns for each rank its host and its last place in the program.
whereabouts: Callable[[], Mapping[int, str]] = dict
silent: Callable[[], Sequence[int]] = list  # Returns the ranks that do not answer.


@dataclass(frozen=True)
class StoreGroup:
    """Ranks that exchange texts through a store, and this process's rank among them."""

    store: Store
    rank: int
    size: int
    timeout: float  # limit of an exchange in seconds
    members: Sequence[int] = ()  # the job's ranks in this group, for messages; empty: all ranks of the job

    def all_gather(
        self, key: str, value: str, what: str = "starting the job", meanwhile: Callable[[], object] | None = None
    ) -> list[str]:
        """Publish this rank's value under `key` and return the values of all ranks, in rank order.

        Rank 0 collects the values and publishes them under one key. So the number of requests is linear in the
        number of ranks, not quadratic.

        Args:
            key: a key that has not been used in this store.
            what: the purpose; error messages begin with it.
            meanwhile: called repeatedly while waiting; see `cpudist.waiting.poll`.

        Raises:
            StartupTimeout: some ranks have not published a value in time (the message names them), or the store is
                lost.
        """

        def late() -> str:
            """Describe the missing ranks; return an empty text on all ranks but the first that calls this."""
            missing = self._missing(key) if self.store.add(f"{key}/late", 1) == 1 else []
            return f"{what}: waiting for {_names(missing, self.members)} of {self.size}" if missing else ""

        exchange = self._collect if self.rank == 0 else self._receive
        try:
            self.store.set(f"{key}/{self.rank}", f"={value}")  # torch's stores drop empty values
            with announced(late, self.timeout):
                missing, values = exchange(key, meanwhile)
        except RuntimeError as error:  # such as torch's DistError
            remedy = "look at rank 0's output"
            raise StartupTimeout(f"{what}: lost the store of rank 0: {first_line(error)}; {remedy}") from None
        if missing:
            why = f"{what}: after {self.timeout:g} s still waiting for {_names(missing, self.members)} of {self.size}"
            raise StartupTimeout(f"{why}; look at their output, or give more time with {option('timeout')}")
        return values

    def _collect(self, key: str, meanwhile: Callable[[], object] | None) -> tuple[list[int], list[str]]:
        """Return the missing ranks, or all values, and publish them for the other ranks."""
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        missing = [] if _await(self.store, keys, self.timeout, meanwhile) else self._missing(key)
        values = [] if missing else [text.decode()[1:] for text in self.store.multi_get(keys)]
        # Compress the texts, because they are similar and each rank gets all of them.
        packed = zlib.compress(json.dumps([missing, values]).encode(), level=1)
        self.store.set(f"{key}/all", packed)  # type: ignore[arg-type]  # torch's stores take bytes too
        return missing, values

    def _receive(self, key: str, meanwhile: Callable[[], object] | None) -> tuple[list[int], list[str]]:
        """Return the missing ranks, or all values, that rank 0 publishes."""
        everyone = f"{key}/all"
        if _await(self.store, [everyone], self.timeout + _VERDICT_SECONDS, meanwhile):
            missing, values = json.loads(zlib.decompress(self.store.get(everyone)))
            return missing, values
        return self._missing(key) or [0], []  # rank 0 may have started later than this rank, so it is still waiting

    def _missing(self, key: str) -> list[int]:
        return [rank for rank in range(self.size) if not self.store.check([f"{key}/{rank}"])]


def awaited(members: Sequence[int] = ()) -> str:
    """Describe the ranks that a group waits for while it connects: those that do not answer, with their last places."""
    late = [rank for rank in silent() if not members or rank in members]
    return f"{_names(late, ())}: no answer from there" if late else "the other ranks, which all answer"


def _names(missing: Sequence[int], members: Sequence[int]) -> str:
    """Return ranks of a group as text, such as "rank 3 (h1, last in train.py:9)"."""
    ranks, places = [members[rank] if members else rank for rank in missing[:_MOST_NAMES]], whereabouts()
    names = ", ".join(f"{rank} ({places[rank]})" if rank in places else str(rank) for rank in ranks)
    return f"rank{'s' * (len(missing) > 1)} {names}" + (", …" if len(missing) > _MOST_NAMES else "")


def _await(store: Store, keys: list[str], timeout: float, meanwhile: Callable[[], object] | None) -> bool:
    """Wait until all keys are there; return False after `timeout` seconds."""
    from cpudist.store.torch_store import JobStore

    # Poll torch's own stores: when a wait times out, they print warnings with C++ frames.
    if meanwhile is not None or not isinstance(store, JobStore):
        return poll(lambda: store.check(keys), timeout, meanwhile)
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        return store.check(keys)
    return True
