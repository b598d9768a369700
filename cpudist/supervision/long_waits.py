"""Name the ranks that this rank waits for: while a call takes long, and after a call has timed out."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cpudist.backends.interface import Call
from cpudist.console import say
from cpudist.errors import StartupTimeout
from cpudist.processes.lost_ranks import tell_launch
from cpudist.store import Address, Connection, StoreLost
from cpudist.supervision.rank_status import RankStatus, published
from cpudist.supervision.reports import Explanation
from cpudist.waiting import LONG_WAIT_SECONDS
from cpudist.world import World

_REPORTED = "stalled/{call}"  # counter; the rank that makes it 1 reports that call or line
_STORE_SECONDS = 5.0


@dataclass(eq=False)
class LongWaits:
    """Reports the ranks that calls of this rank wait for."""

    world: World
    hosts: Sequence[str]  # the host of each rank
    address: Address  # of the job's store
    answer_seconds: float  # a rank whose last status is older does not answer
    timeout: Callable[[], float]  # returns the limit of a collective, in seconds
    _reported: set[str] = field(default_factory=set, init=False)  # calls and lines that need no further report
    # Time and status of the last heartbeat in a long wait.
    _last: tuple[float, RankStatus] | None = field(default=None, init=False)

    def report(self, store: Connection, status: RankStatus) -> None:
        """Report the missing ranks if the oldest call in this rank's new status has taken long.

        Collectives are reported after 10 s, once for each line of the script; any call after a third of the timeout.
        """
        for call in status.under_way[:1]:
            if call.seconds > self.timeout() / 3:
                self._last = time.monotonic(), status
                self._report(store, call, f"{call.group}/{call.sequence}/{call.peer}")
            elif call.seconds > LONG_WAIT_SECONDS and call.sequence is not None and call.ranks != ():
                self._report(store, call, f"{call.name}/{status.line}")

    def explain(self, *, timed_out: bool = False, ended: bool = False) -> list[str]:
        """Return sentences about the ranks that keep others waiting, most likely cause last; any thread may call this.

        The rank that reports a failure calls this. These ranks are also named to `cpudist launch`.

        Args:
            timed_out: whether a call of this rank has just timed out.
            ended: describe only ranks whose script has ended, and name none of them to `cpudist launch`.
        """
        try:
            with contextlib.closing(Connection(self.address, _STORE_SECONDS)) as connection:
                found = self.explanation(connection, timed_out=timed_out)
        except (StoreLost, StartupTimeout):
            return []
        if ended:
            return found.ended()
        tell_launch(found.blamed())
        sentences = found.sentences()
        return [*sentences[1:], *sentences[:1]]

    def explanation(self, store: Connection, *, timed_out: bool = False) -> Explanation:
        """Return an explanation from the published statuses; `timed_out` as in `explain`."""
        seen = published(store, self.world.size, self.answer_seconds)
        # Once a collective of gloo has timed out, torch (2.13) records it as completed, and a heartbeat publishes that.
        if timed_out and self._last is not None and time.monotonic() - self._last[0] < self.answer_seconds:
            seen[self.world.rank] = self._last[1]
        return Explanation({rank: seen.get(rank) for rank in range(self.world.size)}, self.hosts)

    def _report(self, store: Connection, call: Call, which: str) -> None:
        key = _REPORTED.format(call=which)
        if key in self._reported:
            return
        self._reported.add(key)
        if store.add(key, 1) == 1:
            for sentence in self.explanation(store).sentences():
                say(f"waiting for {call.seconds:.0f} s of {self.timeout():g}: {sentence}")
