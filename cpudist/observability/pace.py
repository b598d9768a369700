"""The pace of each rank, and the rank that makes the others wait, with the cause where one shows.

Every rank publishes its pace with its status, and rank 0 compares them. Since ranks step together, a slow rank is the
one that waits least. It is named when it has made the others wait a tenth of a step over the last 40 steps, or over 120
where no cause shows, and was the slowest in both halves of that time.
"""

from __future__ import annotations

import functools
import os
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch.utils.data.dataloader as dataloader
from torch.optim.optimizer import register_optimizer_step_post_hook

from cpudist.console import say
from cpudist.supervision.rank_status import Pace
from cpudist.topology.machine import clock_of

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.changes import Changes
    from cpudist.observability.record import RunRecord

_STEPS, _SECONDS = 40, 10.0  # that are compared, at least both: other programs disturb a shorter time
_UNEXPLAINED = 3  # times as long without a cause: on a virtual machine equal ranks are slow for ten seconds in turn
_SHARE = 0.1  # of a step as it would be without the slow rank: how much longer the others wait than it does
_FIRST_STEPS = 10  # not compared: they compile, allocate and read their first data
_STEPS_BETWEEN, _SECONDS_PER_RANK = 2, 0.01  # between two readings; reading a rank takes rank 0 about 20 µs

_LOST = 0.05  # of the time, beyond others': for data, or without a core
_SLOW_CLOCK = 0.93
_FAULTS = 10_000.0  # a second, beyond 3 times others': they take about 2 % of the time


class PaceMeter:
    """Counts and times this rank's steps and batches, and reads its pace.

    Attributes:
        steps: of torch's optimizers so far.
        batches: of torch's data loaders.
        loading: seconds that this rank has waited for them.
    """

    def __init__(self, backend: Backend, changes: Changes, record: RunRecord) -> None:
        self._backend, self._record = backend, record
        self._training = record.training  # a Trainer has its own there, later
        self.steps = self.batches = 0
        self.loading = 0.0
        self._last = 0.0, 0.0  # the end of the newest step, and the seconds of communication until then
        changes.then(register_optimizer_step_post_hook(self._step).remove)
        iterator = dataloader._BaseDataLoaderIter
        changes.attribute(iterator, "__next__", self._timing(iterator.__next__))

    def read(self, *, at_end: bool = False) -> Pace:
        """Return this rank's pace; any thread may call this."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Pace(
            self.steps,
            time.monotonic(),
            self._backend.communication_seconds(),
            self._backend.communicated_bytes(),
            self.loading,
            used.ru_utime + used.ru_stime,
            psutil.Process().memory_info().rss,
            _coreless_seconds(),
            used.ru_minflt + used.ru_majflt,
            clock_of(min(os.sched_getaffinity(0))),
            torch.get_num_threads(),
            self._record.training.communication_share() if at_end else None,
        )

    def _step(self, *_: Any) -> None:
        now, communicated = time.perf_counter(), self._backend.communication_seconds()
        if self.steps:  # the first one warms up
            waited = None if communicated is None else communicated - self._last[1]
            self._training.times.append((now - self._last[0], waited))
        self._training.steps = self.steps = self.steps + 1
        self._last = now, communicated or 0.0

    def _timing(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            begin = time.perf_counter()
            batch = original(iterator)
            self.loading += time.perf_counter() - begin
            self.batches += 1
            return batch

        return next_batch


class Stragglers:
    """Names ranks that make the others wait, each once; on rank 0.

    Args:
        names: the name of each rank, such as "rank 3 (h1)".
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._readings: deque[Mapping[int, Pace]] = deque()  # of all ranks, back to where the comparison begins
        self._named: set[int] = set()
        self.figures: dict[str, float] = {}  # of the newest comparison

    def are_due(self, steps: int) -> bool:
        """Return whether rank 0 has made enough steps for a reading of the paces of all ranks."""
        if not self._readings:
            return steps >= _FIRST_STEPS
        newest, pause = self._readings[-1][0], len(self._names) * _SECONDS_PER_RANK
        return steps >= newest.steps + _STEPS_BETWEEN and time.monotonic() >= newest.at + pause

    def compare(self, paces: Mapping[int, Pace]) -> None:
        """Compare the ranks since a reading that is long enough ago, if there is one."""
        if len(paces) < len(self._names) or min(one.steps for one in paces.values()) < _FIRST_STEPS:
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
        number, delays = _slowest(rates)
        waits = statistics.fmean(one.waited for one in rates.values())
        self.figures = {"waits": waits, "slowest_rank": number, "delays": delays}
        halves = [_slowest(_rates(*half)) for half in ((first, middle), (middle, last))]
        # On a busy machine a few seconds alone may make up all of the waiting, for a rank that is not slow.
        steady = all(rank == number and share >= _SHARE / 2 for rank, share in halves)
        if number in self._named or not steady or delays < _SHARE * (1 - delays):
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
    """A rank between two readings: its steps, and the rest by second."""

    def __init__(self, first: Pace, last: Pace) -> None:
        self.steps = last.steps - first.steps
        seconds = max(last.at - first.at, 1e-9)
        self.waited = ((last.waited or 0.0) - (first.waited or 0.0)) / seconds
        self.loading = (last.loading - first.loading) / seconds
        self.coreless = ((last.coreless or 0.0) - (first.coreless or 0.0)) / seconds
        self.faults = (last.faults - first.faults) / seconds
        self.clock = last.clock
        self.threads = last.threads


def _rates(first: Mapping[int, Pace], last: Mapping[int, Pace]) -> dict[int, _Rates]:
    return {rank: _Rates(first[rank], one) for rank, one in last.items()}


def _long_enough(first: Mapping[int, Pace], last: Mapping[int, Pace], times: int) -> bool:
    steps = min(one.steps - first[rank].steps for rank, one in last.items())
    return steps >= times * _STEPS and last[0].at - first[0].at >= times * _SECONDS


def _slowest(rates: Mapping[int, _Rates]) -> tuple[int, float]:
    """Return the rank that has waited least, and the share of the time that the others have waited beyond it."""
    number = min(rates, key=lambda rank: rates[rank].waited)
    others = statistics.median(one.waited for rank, one in rates.items() if rank != number)
    return number, max(others - rates[number].waited, 0.0)


def _cause(slow: _Rates, others: Sequence[_Rates]) -> str:
    """Return why a rank is slower than the others, as far as it shows."""

    def usual(name: str) -> float:
        known = [getattr(one, name) for one in others if getattr(one, name) is not None]
        return statistics.median(known) if known else 0.0

    if slow.loading > usual("loading") + _LOST:
        return f"its data loader takes {100 * slow.loading:.0f} % of its time"
    if slow.threads < usual("threads"):
        return f"it computes with {slow.threads} threads, others with {usual('threads'):g}"
    if slow.clock is not None and slow.clock < _SLOW_CLOCK * usual("clock"):
        return f"its clock is {slow.clock / 1e9:.1f} GHz, that of others {usual('clock') / 1e9:.1f}"
    if slow.coreless > usual("coreless") + _LOST:
        reason = "another program computes there, or its CPU quota is used up"
        return f"it waits for a core for {100 * slow.coreless:.0f} % of the time: {reason}"
    if slow.faults > _FAULTS + 3 * usual("faults"):
        return f"it has {slow.faults:.0f} page faults a second"
    return ""


def _coreless_seconds() -> float | None:
    try:  # of the main thread: waiting on a run queue (the kernel's sched-stats.rst)
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return None
