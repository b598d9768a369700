"""Contenders that take turns, and what may be said about their times.

Plain arithmetic: it must not know torch, ranks or what is being timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Name = TypeVar("Name")

# Makes so many calls and returns the seconds of each.
Contender = Callable[[int], list[float]]


@dataclass(frozen=True)
class Turns:
    """How contenders take turns. Warm-up calls are not counted: the caches are full of others' data.

    `means`: a round counts by the mean of its calls, where a few of them take most of the time and matter.
    """

    rounds: int
    calls: int
    warm_up: int
    means: bool = False


@dataclass(frozen=True)
class Timings:
    """The seconds of one contender's calls, round by round; `means`: a round counts by its mean, not by its median."""

    rounds: tuple[tuple[float, ...], ...]
    means: bool = False

    @property
    def median(self) -> float:
        """Over all calls; over the rounds' means where these count."""
        if self.means:
            return statistics.median(self.by_round)
        return statistics.median(seconds for calls in self.rounds for seconds in calls)

    @property
    def by_round(self) -> list[float]:
        """What each round counts by."""
        center = statistics.fmean if self.means else statistics.median
        return [center(calls) for calls in self.rounds]

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest round."""
        return min(self.by_round), max(self.by_round)

    def as_dict(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "spread": list(self.spread),
            "round_means" if self.means else "round_medians": self.by_round,
            "calls_per_round": len(self.rounds[0]),
        }


@dataclass(frozen=True)
class Ratio:
    """How many times as long one contender takes as another, round by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.rounds), max(self.rounds)

    def as_dict(self) -> dict[str, Any]:
        return {"median": self.median, "spread": list(self.spread), "rounds": list(self.rounds)}


def ratio(slower: Timings, faster: Timings) -> Ratio:
    """`slower` over `faster`. Within a round both met the same machine: its drift over the rounds cancels."""
    return Ratio(tuple(a / b for a, b in zip(slower.by_round, faster.by_round, strict=True)))


def take_turns(
    contenders: Mapping[Name, Contender], turns: Turns, say: Callable[[str], None] | None = None
) -> dict[Name, Timings]:
    """Time all contenders, one after the other in every round: A B C, A B C, … `say` hears of each."""
    rounds: dict[Name, list[tuple[float, ...]]] = {name: [] for name in contenders}
    for number in range(1, turns.rounds + 1):
        if say:
            say(f"round {number} of {turns.rounds}")
        for name, contender in contenders.items():
            rounds[name].append(tuple(contender(turns.warm_up + turns.calls)[turns.warm_up :]))
    return {name: Timings(tuple(calls), turns.means) for name, calls in rounds.items()}
