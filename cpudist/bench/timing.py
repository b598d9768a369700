"""Time candidates in turn, and compute statistics of their times."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

# A function that makes the given number of calls and returns the seconds of each.
Candidate = Callable[[int], list[float]]

CCL, GLOO = "ccl", "gloo"
COPY, ALONE = "memory copy", "no communication"  # names of candidates that use no network
_TURN_SECONDS = 1.0
_FEWEST_CALLS = 8  # A turn of slow calls still has so many, or a fifth if that is more: more than its warm-up.


@dataclass(frozen=True)
class Turns:
    """How candidates take turns. A turn begins with `warm_up` untimed calls, because caches hold other data."""

    rounds: int
    calls: int
    warm_up: int


@dataclass(frozen=True)
class Timings:
    """Seconds of one candidate's calls by round, or their ratios to another candidate's."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def median(self) -> float:
        return statistics.median(seconds for calls in self.rounds for seconds in calls)

    @property
    def by_round(self) -> list[float]:
        return [statistics.median(calls) for calls in self.rounds]

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest round."""
        return min(self.by_round), max(self.by_round)

    def as_dict(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "spread": list(self.spread),
            "round_medians": self.by_round,
            "calls_per_round": len(self.rounds[0]),
        }


def ratio(slower: Timings, faster: Timings) -> Timings:
    """Divide `slower` by `faster` in each round, so that drift of the machine over the rounds cancels."""
    return Timings(tuple((a / b,) for a, b in zip(slower.by_round, faster.by_round, strict=True)))


def take_turns(
    candidates: Mapping[str, Candidate], turns: Turns, say: Callable[[str], None] | None = None
) -> dict[str, Timings]:
    """Time all candidates, one after the other in every round: A B C, A B C, …; `say` is called before each round."""
    rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in candidates}
    for number in range(1, turns.rounds + 1):
        if say:
            say(f"round {number} of {turns.rounds}")
        for name, candidate in candidates.items():
            rounds[name].append(tuple(candidate(turns.warm_up + turns.calls)[turns.warm_up :]))
    return {name: Timings(tuple(calls)) for name, calls in rounds.items()}


def in_turn(calls: Iterable[Callable[..., object]]) -> Callable[..., object]:
    """Return a function that calls the next of `calls` each time, in a cycle.

    Each of `calls` has buffers of its own. A buffer that is used again and again stays in the caches, which favours
    candidates that copy little.
    """
    following = itertools.cycle(calls)
    return lambda **arguments: next(following)(**arguments)


def timed(call: Callable[[], object]) -> Candidate:
    """Return a candidate that makes `call` again and again, without a pause."""

    def measure(calls: int) -> list[float]:
        seconds = []
        for _ in range(calls):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return measure


def together(candidate: Candidate, group: dist.ProcessGroup | None = None, fewest: int = _FEWEST_CALLS) -> Candidate:
    """Start each turn on all ranks at once, and return each call's mean time over the ranks.

    One rank's time is too short if the rank may leave a collective early (the root of a broadcast). The slowest rank's
    time contains the jitter of all ranks. The times are exchanged in `group`, outside of the timed part.

    A turn is limited to about a second. If calls are slow, such as gloo's among many ranks, it makes fewer: at least a
    fifth of `calls`, and at least `fewest`.
    """

    def measure(calls: int) -> list[float]:
        dist.barrier(group)
        slowest = torch.tensor(candidate(1), dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
        wanted = int(_TURN_SECONDS / max(float(slowest), 1e-9))
        calls = min(calls, max(wanted, calls // 5, fewest))
        seconds = torch.tensor(candidate(calls), dtype=torch.float64)
        dist.all_reduce(seconds, group=group)
        return [float(sum_of_ranks) / dist.get_world_size(group) for sum_of_ranks in seconds]

    return measure


def both_groups(backend: str) -> dict[str, dist.ProcessGroup]:
    """Return the job's own group on `backend`, and a gloo group of the same ranks."""
    own = dist.group.WORLD
    gloo = own if backend == GLOO else dist.new_group(backend=GLOO)
    assert own is not None
    assert gloo is not None
    return {backend: own, GLOO: gloo}
