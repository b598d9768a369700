"""A job as observers read it, without ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cpudist.backends.gloo import GlooBackend
from cpudist.balance.agreed import Balance
from cpudist.patching.undo import Changes
from cpudist.supervision.rank_status import RankStatus
from cpudist.supervision.step_counter import StepCounter
from cpudist.world import RankInfo, World


class CountingBackend(GlooBackend):
    """Reports the figures that a test sets."""

    seconds: float | None = None
    sent: int | None = None
    compressed: tuple[int, int] | None = None
    collectives: list[tuple[str, int | None]] | None = None

    def communication_seconds(self) -> float | None:
        return self.seconds

    def communicated_bytes(self) -> int | None:
        return self.sent

    def compressed_bytes(self) -> tuple[int, int] | None:
        return self.compressed

    def progress(self) -> list[tuple[str, int | None]] | None:
        return self.collectives


ALONE = World(0, 1, 0, 1, 0, 1, "single", backend="gloo", hosts=("here",))


@dataclass
class Observed:
    """An `ObservedJob`; undoing `changes` ends its counter."""

    world: World = ALONE
    members: Sequence[RankInfo] = ()
    restarts: int = 0
    timeout: float = 60.0
    backend: CountingBackend = field(default_factory=CountingBackend)
    store: Any = None
    changes: Changes = field(default_factory=Changes)
    ranks: dict[int, RankStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counter = StepCounter(self.changes)
        self.balance = Balance(self.world.rank, max(len(self.members), 1), self.store, self.changes)

    def statuses(self) -> dict[int, RankStatus]:
        return self.ranks
