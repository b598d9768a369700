"""Find the rank that makes the others wait, and the cause if the figures show one.

Rank 0 compares the paces that all ranks publish. Since ranks step together, the slowest rank waits least for
communication. A rank's excess is the extra wait of the others divided by the step time without it: 5 if it is six times
as slow, negative if it waits longer than they do. A sequential test (balance/balancer.py) decides when it is reported.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from cpudist.balance.balancer import LIMIT, Balancer, Evidence, Paces
from cpudist.console import say
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.record import RunRecord
from cpudist.store import Connection
from cpudist.supervision.rank_status import Pace, RankStatus, published

# The test's noise if the figures show a cause, and if they do not, since equal virtual machines are slow in turn. An
# excess of 15 % is reported after about 40 steps and 10 s with a cause, and after about 120 steps and 30 s without.
_NOISE, _UNEXPLAINED_NOISE = 0.07, 0.09
_BUSY_STEPS, _BUSY_SECONDS = 40, 10.0  # Other programs that take a rank's cores for a shorter time are not reported.
_FIRST_STEPS = 2  # The first steps are not compared: ranks compile, allocate and read their first data.
_SECONDS_PER_RANK = 0.01  # Sampling interval divided by the number of ranks; rank 0 needs about 20 µs for each rank.
_READINGS = 40  # The record compares the ranks over so many readings.

_LOST = 0.05  # Excess share of time in data loading or in the run queue that counts as a cause.
_SLOW_CLOCK = 0.93
_FAULTS = 10_000.0  # Page faults per second, above three times the others', that count as a cause: 2 % of the time.


class Stragglers(Observer):
    """Reports each rank that makes the others wait, only once, and notes it in `record`; used on rank 0."""

    def __init__(self, job: ObservedJob, record: RunRecord) -> None:
        self._job, self._record = job, record
        self._names = [f"rank {rank} ({member.host})" for rank, member in enumerate(job.members)]
        self._balancer = Balancer(job.balance, [member.host for member in job.members])
        self._readings: deque[Paces] = deque(maxlen=_READINGS)
        self._evidence: dict[float, dict[int, Evidence]] = {_NOISE: {}, _UNEXPLAINED_NOISE: {}}  # by noise, by rank
        self._lines: defaultdict[int, Counter[str]] = defaultdict(Counter)  # lines of code of the slowest ranks

    def beat(self, store: Connection) -> None:
        """Read the paces of all ranks if rank 0 has made a step, and compare them."""
        if self.are_due(self._job.counter.steps):
            self.compare(published(store, len(self._names)))

    def are_due(self, steps: int) -> bool:
        """Return whether rank 0 has made enough steps for a reading of the paces of all ranks."""
        if not self._readings:
            return steps >= _FIRST_STEPS
        newest, pause = self._readings[-1][0], len(self._names) * _SECONDS_PER_RANK
        return steps > newest.steps and time.monotonic() >= newest.at + pause

    def compare(self, statuses: Mapping[int, RankStatus]) -> None:
        """Compare the ranks since the last reading; do nothing unless all of them have made a step since then."""
        paces = {rank: one.pace for rank, one in statuses.items() if one.pace and one.pace.step_waited is not None}
        if not 1 < len(self._names) <= len(paces) or min(one.steps for one in paces.values()) < _FIRST_STEPS:
            return
        if not self._readings:
            self._readings.append(paces)
            return
        before = self._readings[-1]
        steps = min(one.steps - before[rank].steps for rank, one in paces.items())
        if steps < 1:
            return
        self._readings.append(paces)
        if found := self._balancer.compare(before, paces):
            self._record.shares = found
            self._evidence = {noise: {} for noise in self._evidence}  # the earlier evidence is about the earlier shares
        rates = _rates(before, paces)
        slowest = _slowest(rates)
        self._note(slowest, statuses[slowest])
        for noise, of_ranks in self._evidence.items():
            for rank in {slowest, *of_ranks}:
                evidence = of_ranks.setdefault(rank, Evidence(before))
                evidence.add(_excess(rates, rank), noise, steps, rates[slowest].seconds)
                if evidence.score <= 0:
                    del of_ranks[rank]
            certain = slowest in of_ranks and of_ranks[slowest].score >= LIMIT
            if certain and slowest not in self._record.stragglers and self._balancer.evidence is None:
                self._report(slowest, _rates(of_ranks[slowest].begin, paces), explained=noise == _NOISE)

    def _note(self, slowest: int, status: RankStatus) -> None:
        """Note the newest comparison for the record, and where the slowest rank computes."""
        rates = _rates(self._readings[0], self._readings[-1])
        rank, waits = _slowest(rates), statistics.fmean(one.waited for one in rates.values())
        self._record.compared = {"waits": waits, "slowest_rank": rank, "delays": max(_delay(rates, rank), 0.0)}
        if status.line and not status.under_way:
            self._lines[slowest][status.line] += 1
        if slowest in self._record.stragglers:
            self._record.stragglers[slowest] = self._place(slowest)

    def _report(self, rank: int, rates: Mapping[int, _Rates], *, explained: bool) -> None:
        slow, others = rates[rank], [one for other, one in rates.items() if other != rank]
        cause, place = _cause(slow, others), self._place(rank)
        brief = slow.steps < _BUSY_STEPS or slow.seconds < _BUSY_SECONDS
        if (explained and not cause) or (brief and _lacks_cores(slow, others)):
            return
        self._record.stragglers[rank] = place
        waited = statistics.median(one.waited for one in others)
        why = cause or (f"it is mostly in {place}" if place else "")
        shares = f"the others have waited for {100 * waited:.0f} % of the time, and it for {100 * slow.waited:.0f} %"
        because = f"; {why}" if why else ""
        say(f"{self._names[rank]} makes the others wait: in {slow.steps} steps {shares}{because}")

    def _place(self, rank: int) -> str:
        return next((line for line, _ in self._lines[rank].most_common(1)), "")


class _Rates:
    """A rank's progress between two readings: steps, and rates of its other counters."""

    def __init__(self, first: Pace, last: Pace) -> None:
        assert first.step_at is not None
        assert last.step_at is not None
        self.steps = last.steps - first.steps
        self.seconds = max(last.step_at - first.step_at, 1e-9)
        self.waited = ((last.step_waited or 0.0) - (first.step_waited or 0.0)) / self.seconds
        seconds = max(last.at - first.at, 1e-9)
        self.loading = (last.loading - first.loading) / seconds
        self.run_queue_delay = ((last.run_queue_delay or 0.0) - (first.run_queue_delay or 0.0)) / seconds
        self.faults = (last.faults - first.faults) / seconds
        self.clock = last.clock
        self.threads = last.threads


def _rates(first: Paces, last: Paces) -> dict[int, _Rates]:
    return {rank: _Rates(first[rank], one) for rank, one in last.items()}


def _slowest(rates: Mapping[int, _Rates]) -> int:
    return min(rates, key=lambda rank: rates[rank].waited)


def _delay(rates: Mapping[int, _Rates], rank: int) -> float:
    """Return the straggler delay of a rank as a share of the time; negative if it waits longer than the others."""
    return statistics.median(one.waited for other, one in rates.items() if other != rank) - rates[rank].waited


def _excess(rates: Mapping[int, _Rates], rank: int) -> float:
    """Return the straggler delay of a rank divided by the step time without it."""
    delay = _delay(rates, rank)
    return delay / max(1 - abs(delay), 1e-3)


def _cause(slow: _Rates, others: Sequence[_Rates]) -> str:
    """Return why a rank is slower than the others; empty if the figures do not show it."""
    if slow.loading > _usual(others, "loading") + _LOST:
        return f"its data loader takes {100 * slow.loading:.0f} % of its time"
    if slow.threads < (threads := _usual(others, "threads")):
        return f"it computes with {slow.threads} threads, others with {threads:g}"
    if slow.clock is not None and slow.clock < _SLOW_CLOCK * (clock := _usual(others, "clock")):
        return f"its clock is {slow.clock / 1e9:.1f} GHz, that of others {clock / 1e9:.1f}"
    if _lacks_cores(slow, others):
        reason = "another program computes there, or its CPU quota is used up"
        return f"it waits for a core for {100 * slow.run_queue_delay:.0f} % of the time: {reason}"
    if slow.faults > _FAULTS + 3 * _usual(others, "faults"):
        return f"it has {slow.faults:.0f} page faults a second"
    return ""


def _lacks_cores(slow: _Rates, others: Sequence[_Rates]) -> bool:
    return slow.run_queue_delay > _usual(others, "run_queue_delay") + _LOST


def _usual(others: Sequence[_Rates], name: str) -> float:
    known = [getattr(one, name) for one in others if getattr(one, name) is not None]
    return statistics.median(known) if known else 0.0
