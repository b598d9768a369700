"""Find the rank that makes the others wait, and the cause if the figures show one.

Rank 0 compares the paces that all ranks publish. Since ranks step together, a slow rank is the one that waits least for
communication. It is reported if its straggler delay was at least a tenth of a step over the last 40 steps (120 steps if
no cause is found), and if it was the slowest rank in both halves of that time.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cpudist.console import say
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.store import Connection
from cpudist.supervision.rank_status import Pace, published

if TYPE_CHECKING:
    from cpudist.observability.record import RunRecord

_STEPS, _SECONDS = 40, 10.0  # Shortest comparison: other programs disturb a shorter one.
_UNEXPLAINED = 3  # Without a cause, compare over so many times as long: equal virtual machines are slow in turn.
_SHARE = 0.1  # Straggler threshold: extra wait of the others / step time without the straggler.
_FIRST_STEPS = 10  # The first steps are not compared: ranks compile, allocate and read their first data.
_STEPS_BETWEEN, _SECONDS_PER_RANK = 2, 0.01  # Sampling interval; rank 0 needs about 20 µs for each rank.

_LOST = 0.05  # Excess share of time in data loading or in the run queue that counts as a cause.
_SLOW_CLOCK = 0.93
_FAULTS = 10_000.0  # Threshold of page faults per second above three times the others'; so many take 2 % of the time.


class Stragglers(Observer):
    """Reports each rank that makes the others wait, once; used on rank 0 of several ranks.

    Args:
        record: gets the figures of the newest comparison.
    """

    def __init__(self, job: ObservedJob, record: RunRecord) -> None:
        self._job, self._record = job, record
        self._names = [f"rank {rank} ({member.host})" for rank, member in enumerate(job.members)]
        self._readings: deque[Mapping[int, Pace]] = deque()  # paces of all ranks since the begin of the comparison
        self._named: set[int] = set()

    def beat(self, store: Connection) -> None:
        """Read the paces of all ranks if rank 0 has made enough steps, and compare them."""
        if self.are_due(self._job.counter.steps):
            statuses = published(store, len(self._names)).values()
            self.compare({one.rank: one.pace for one in statuses if one.pace and one.pace.waited is not None})

    def are_due(self, steps: int) -> bool:
        """Return whether rank 0 has made enough steps for a reading of the paces of all ranks."""
        if not self._readings:
            return steps >= _FIRST_STEPS
        newest, pause = self._readings[-1][0], len(self._names) * _SECONDS_PER_RANK
        return steps >= newest.steps + _STEPS_BETWEEN and time.monotonic() >= newest.at + pause

    def compare(self, paces: Mapping[int, Pace]) -> None:
        """Compare the ranks over the time since a reading that is old enough; without one do nothing."""
        if len(self._names) < 2 or len(paces) < len(self._names):
            return
        if min(one.steps for one in paces.values()) < _FIRST_STEPS:
            return
        self._readings.append(dict(paces))
        while len(self._readings) > 1 and _long_enough(self._readings[1], paces, _UNEXPLAINED):
            self._readings.popleft()
        if sentence := self._sentence(_UNEXPLAINED) or self._sentence(1):
            say(sentence)

    def _sentence(self, times: int) -> str:
        last, ends = self._readings[-1], range(len(self._readings) - 1)
        begin = next((end for end in reversed(ends) if _long_enough(self._readings[end], last, times)), None)
        if begin is None:
            return ""
        first, middle = self._readings[begin], self._readings[(begin + len(self._readings)) // 2]
        rates = _rates(first, last)
        number, delay = _slowest(rates)
        waits = statistics.fmean(one.waited for one in rates.values())
        self._record.compared = {"waits": waits, "slowest_rank": number, "delays": delay}
        halves = [_slowest(_rates(*half)) for half in ((first, middle), (middle, last))]
        # On a busy machine all of the waiting may come from a few seconds, although the rank is not slow.
        steady = all(rank == number and share >= _SHARE / 2 for rank, share in halves)
        if number in self._named or not steady or delay < _SHARE * (1 - delay):
            return ""
        slow, others = rates[number], [one for rank, one in rates.items() if rank != number]
        waited, cause = statistics.median(one.waited for one in others), _cause(slow, others)
        if not cause and times < _UNEXPLAINED:
            return ""
        self._named.add(number)
        return (
            f"{self._names[number]} makes the others wait: in {slow.steps} steps they have waited for "
            f"{100 * waited:.0f} % of the time, and it for {100 * slow.waited:.0f} %" + (f"; {cause}" if cause else "")
        )


class _Rates:
    """Steps of a rank between two readings, and its other counters per second."""

    def __init__(self, first: Pace, last: Pace) -> None:
        self.steps = last.steps - first.steps
        seconds = max(last.at - first.at, 1e-9)
        self.waited = ((last.waited or 0.0) - (first.waited or 0.0)) / seconds
        self.loading = (last.loading - first.loading) / seconds
        self.run_queue_delay = ((last.run_queue_delay or 0.0) - (first.run_queue_delay or 0.0)) / seconds
        self.faults = (last.faults - first.faults) / seconds
        self.clock = last.clock
        self.threads = last.threads


def _rates(first: Mapping[int, Pace], last: Mapping[int, Pace]) -> dict[int, _Rates]:
    return {rank: _Rates(first[rank], one) for rank, one in last.items()}


def _long_enough(first: Mapping[int, Pace], last: Mapping[int, Pace], times: int) -> bool:
    steps = min(one.steps - first[rank].steps for rank, one in last.items())
    return steps >= times * _STEPS and last[0].at - first[0].at >= times * _SECONDS


def _slowest(rates: Mapping[int, _Rates]) -> tuple[int, float]:
    """Return the rank that has waited least, and its straggler delay as a share of the time, for at least two ranks."""
    number = min(rates, key=lambda rank: rates[rank].waited)
    others = statistics.median(one.waited for rank, one in rates.items() if rank != number)
    return number, max(others - rates[number].waited, 0.0)


def _cause(slow: _Rates, others: Sequence[_Rates]) -> str:
    """Return why a rank is slower than the others; empty if the figures do not show it."""

    def usual(name: str) -> float:
        known = [getattr(one, name) for one in others if getattr(one, name) is not None]
        return statistics.median(known) if known else 0.0

    if slow.loading > usual("loading") + _LOST:
        return f"its data loader takes {100 * slow.loading:.0f} % of its time"
    if slow.threads < usual("threads"):
        return f"it computes with {slow.threads} threads, others with {usual('threads'):g}"
    if slow.clock is not None and slow.clock < _SLOW_CLOCK * usual("clock"):
        return f"its clock is {slow.clock / 1e9:.1f} GHz, that of others {usual('clock') / 1e9:.1f}"
    if slow.run_queue_delay > usual("run_queue_delay") + _LOST:
        reason = "another program computes there, or its CPU quota is used up"
        return f"it waits for a core for {100 * slow.run_queue_delay:.0f} % of the time: {reason}"
    if slow.faults > _FAULTS + 3 * usual("faults"):
        return f"it has {slow.faults:.0f} page faults a second"
    return ""
