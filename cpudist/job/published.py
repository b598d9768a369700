"""The statuses that all ranks publish in the job's store, and sentences about ranks that are late."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cpudist.job import reports
from cpudist.job.rank_status import RankStatus
from cpudist.store import Connection

_KEY = "status/{rank}"
_MISSED_HEARTBEATS = 4  # of a rank that does not answer
_MOST_NAMES = 3  # of ranks in one message


class Published:
    """What the ranks have published. Methods take the connection of the thread that asks.

    Args:
        hosts: the host name of each rank.
        heartbeat: the time between two statuses of one rank, in seconds.
    """

    def __init__(self, hosts: Sequence[str], heartbeat: float) -> None:
        self._hosts = hosts
        self._heartbeat = heartbeat

    def publish(self, store: Connection, rank: int, status: RankStatus) -> None:
        """Publish the status of `rank`."""
        store.set({_KEY.format(rank=rank): status.to_json().encode()})

    def last(self, store: Connection, seconds: float = math.inf) -> dict[int, RankStatus]:
        """Return the last status of each rank that has published one within `seconds`."""
        keys = [_KEY.format(rank=rank) for rank in range(len(self._hosts))]
        found = [rank for rank, age in enumerate(store.ages(keys)) if age is not None and age < seconds]
        values = store.get([keys[rank] for rank in found]) or []
        return {rank: RankStatus.from_json(text.decode()) for rank, text in zip(found, values, strict=True)}

    def explain(self, store: Connection) -> list[str]:
        """Return sentences that name the ranks that keep others waiting, or have missed heartbeats."""
        seen = self.last(store, _MISSED_HEARTBEATS * self._heartbeat)
        return reports.explain({rank: seen.get(rank) for rank in range(len(self._hosts))}, self._hosts)

    def unfinished(self, store: Connection, seconds: float) -> list[str]:
        """Return sentences that name ranks whose script has not ended, after `seconds` of waiting for them."""
        late = {rank: status for rank, status in self.last(store).items() if not status.at_end}
        places = [f"rank {rank} ({self._hosts[rank]}), {reports.last_seen(status)}" for rank, status in late.items()]
        return [f"after {seconds:g} s at the end still waiting for {place}" for place in places[:_MOST_NAMES]]
