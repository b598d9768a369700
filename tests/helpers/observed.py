"""A job as observers read it, without ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cpudist.backends.gloo import GlooBackend
from cpudist.changes import Changes
from cpudist.observability.observers import ObservedBackend
from cpudist.supervision.rank_status import RankStatus
from cpudist.supervision.step_counter import StepCounter
from cpudist.world import RankInfo, World

ALONE = World(0, 1, 0, 1, 0, 1, "single", backend="gloo", hosts=("here",))


@dataclass
class Observed:
    """An `ObservedJob`; undoing `changes` ends its counter."""

    world: World = ALONE
    members: Sequence[RankInfo] = ()
    restarts: int = 0
    timeout: float = 60.0
    backend: ObservedBackend = field(default_factory=GlooBackend)
    store: Any = None
    changes: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        self.counter = StepCounter(self.changes)

    def statuses(self) -> dict[int, RankStatus]:
        return {}
