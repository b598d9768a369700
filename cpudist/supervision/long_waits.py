"""Name the ranks that this rank waits for: while a call lasts long, and after one has timed out."""

import contextlib
import time
from collections.abc import Callable, Sequence

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


class LongWaits:
    """Reports the ranks that calls of this rank wait for.

    Args:
        hosts: the host of each rank.
        address: address of the job's store.
        answer_seconds: a rank whose last status is older does not answer.
        timeout: returns the limit of a collective, in seconds.
        host_is_silent: returns whether a host does not answer, which the watch reports.
    """

    def __init__(
        self,
        world: World,
        hosts: Sequence[str],
        address: Address,
        answer_seconds: float,
        timeout: Callable[[], float],
        host_is_silent: Callable[[Connection], bool],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._address = address
        self._answer_seconds = answer_seconds
        self._timeout = timeout
        self._host_is_silent = host_is_silent
        self._reported: set[str] = set()  # calls and lines that this rank need not report any more
        self._last: tuple[float, RankStatus] | None = None  # time and status of the last heartbeat in a long wait

    def report(self, store: Connection, status: RankStatus) -> None:
        """Report the missing ranks if the oldest call in this rank's new status has waited for long.

        Long is 10 seconds, reported once for each line of the script, and a third of the timeout, once for each call.
        """
        for call in status.under_way[:1]:
            if call.seconds > self._timeout() / 3:
                self._last = time.monotonic(), status
                self._report(store, call, f"{call.group}/{call.sequence}/{call.peer}")
            elif call.seconds > LONG_WAIT_SECONDS and call.sequence is not None and call.ranks != ():
                self._report(store, call, f"{call.name}/{status.line}")

    def explain(self, *, timed_out: bool = False) -> list[str]:
        """Return sentences about the ranks that keep others waiting, most likely cause last; any thread may call this.

        The rank that reports a failure calls this. `cpudist launch` is told these ranks, too.

        Args:
            timed_out: whether a call of this rank has just timed out.
        """
        try:
            with contextlib.closing(Connection(self._address, _STORE_SECONDS)) as connection:
                found = self.explanation(connection, timed_out=timed_out)
        except (StoreLost, StartupTimeout):
            return []
        tell_launch(found.blamed())
        sentences = found.sentences()
        return [*sentences[1:], *sentences[:1]]

    def explanation(self, store: Connection, *, timed_out: bool = False) -> Explanation:
        """Return an explanation from the published statuses; `timed_out` as in `explain`."""
        seen = published(store, self._world.size, self._answer_seconds)
        # Once a collective of gloo has timed out, torch (2.13) records it as completed, and a heartbeat publishes that.
        if timed_out and self._last is not None and time.monotonic() - self._last[0] < self._answer_seconds:
            seen[self._world.rank] = self._last[1]
        return Explanation({rank: seen.get(rank) for rank in range(self._world.size)}, self._hosts)

    def _report(self, store: Connection, call: Call, which: str) -> None:
        key = _REPORTED.format(call=which)
        if key in self._reported or self._host_is_silent(store):
            return
        self._reported.add(key)
        if store.add(key, 1) == 1:
            for sentence in self.explanation(store).sentences():
                say(f"waiting for {call.seconds:.0f} s of {self._timeout():g}: {sentence}")
