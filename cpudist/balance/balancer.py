"""Choose new shares on rank 0 if the ranks' speeds have changed lastingly.

A rank's speed is its number of samples divided by its time without communication waits. The excess of the present
shares is the time of a step with them, divided by the time with the best whole shares, minus 1.

The test is sequential: a larger excess is found in fewer steps (Page, "Continuous inspection schemes", 1954). A score
grows by excess / (2 * noise) - ln 2 in each observation, does not fall below 0, and ends the test at `LIMIT`.

False alarms: if the excess of equal ranks is at most exponentially distributed with the mean `noise`, the mean of
exp(growth) is at most 1, and the test ends less than once in e**LIMIT independent observations (Lorden, "Procedures for
reacting to a change in distribution", 1971), or 9 days. A delay may last for several short steps, so an observation is
one step, or 0.25 s if steps are shorter. `_MOST` limits growth, so a few long steps, as for saving, are not enough.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpudist.balance.agreed import Balance
from cpudist.balance.division import divide, seconds
from cpudist.console import say
from cpudist.supervision.rank_status import Pace

LIMIT, _MOST = 15.0, 2.5
_NOISE = 0.07
_OBSERVATION_SECONDS = 0.25
_PAUSE = 100  # Fewest steps between two changes.
_GAIN = 0.05  # Smallest relative speed-up of a step for which shares are changed.
_TOLD = 8  # The message lists the shares of up to so many ranks one by one.
_UNSEEN = 30  # Warn if so many steps have used no batch of `cpudist.shares` or a Trainer.

Paces = Mapping[int, Pace]


@dataclass
class Evidence:
    """The score of a sequential test, and the paces of all ranks when it began to grow."""

    begin: Paces
    score: float = 0.0

    def add(self, excess: float, noise: float, steps: int, elapsed: float) -> None:
        """Add a reading of `steps` steps in `elapsed` seconds."""
        growth = max(-_MOST, min(excess / (2 * noise) - math.log(2), _MOST))
        self.score += min(min(steps, elapsed / _OBSERVATION_SECONDS) * growth, 2 * _MOST)


class Balancer:
    """Chooses the shares of `balance` from the paces of all ranks; used on rank 0."""

    def __init__(self, balance: Balance, hosts: Sequence[str]) -> None:
        self._balance = balance
        alone = len(set(hosts)) == len(hosts)
        self._names = [host if alone else f"rank {rank}" for rank, host in enumerate(hosts)]
        self.evidence: Evidence | None = None  # evidence for other shares; None: score 0
        self._changed_at = -_PAUSE
        self._largest: tuple[int, ...] = ()
        self._warned = False

    def compare(self, before: Paces, now: Paces) -> dict[str, Any] | None:
        """Change the shares if two readings of all paces justify it; return the change for the run record."""
        balance = self._balance
        if not balance.follows_speeds:
            return None
        speeds = _speeds(before, now)
        if speeds is None:
            if now[0].steps >= _UNSEEN and not (now[0].samples or self._warned):
                self._warned = True
                say("warning: --balance changes nothing: neither cpudist.shares nor a Trainer divides the batches")
            return None
        shares = divide(balance.per_step, balance.chosen, balance.least)
        self._largest = tuple(map(max, shares, self._largest or shares))
        best = self._best(speeds, now)
        steps = min(pace.steps - before[rank].steps for rank, pace in now.items())
        excess = seconds(shares, speeds) / seconds(best, speeds) - 1
        evidence = self.evidence or Evidence(before)
        evidence.add(excess, _NOISE, steps, now[0].at - before[0].at)
        self.evidence = evidence if evidence.score > 0 else None
        if evidence.score < LIMIT or now[0].steps < self._changed_at + _PAUSE:
            return None
        self.evidence = None
        return self._change(shares, _speeds(evidence.begin, now) or speeds, now)

    def _best(self, speeds: tuple[float, ...], now: Paces) -> tuple[int, ...]:
        """Return the best shares that fit the ranks' memory, taking a rank's memory as proportional to its share."""
        room = (1 + now[rank].available / max(now[rank].memory, 1) for rank in range(len(speeds)))
        most = tuple(int(share * times) for share, times in zip(self._largest, room, strict=True))
        return divide(self._balance.per_step, speeds, self._balance.least, most)

    def _change(self, shares: tuple[int, ...], speeds: tuple[float, ...], now: Paces) -> dict[str, Any] | None:
        best = self._best(speeds, now)
        faster = seconds(shares, speeds) / seconds(best, speeds)
        if faster < 1 + _GAIN:
            return None
        self._balance.chosen, self._changed_at = best, now[0].steps
        slow, fast = (self._names[speeds.index(choose(speeds))] for choose in (min, max))
        few, each = len(best) <= _TOLD, ", ".join(map(str, best[:-1]))
        told = f"{each} and {best[-1]}" if few else f"{min(best)} to {max(best)}"
        growth, rank = max((new / old, rank) for rank, (new, old) in enumerate(zip(best, self._largest, strict=True)))
        grows = f"; {self._names[rank]}'s largest share so far was {self._largest[rank]}" if growth > 1 else ""
        why = f"{slow} computes {min(speeds) / max(speeds):.2f} of {fast}'s samples a second"
        say(f"{why}: shares {told} of {sum(best)}; steps {faster:.1f} times as fast{grows}")
        return {"step": now[0].steps, "shares": best, "speeds": [float(f"{speed:.4g}") for speed in speeds]}


def _speeds(first: Paces, last: Paces) -> tuple[float, ...] | None:
    """Return the samples per second of each rank while it computes; None if a rank has computed none."""
    speeds = []
    for rank in range(len(last)):
        one, other = first[rank], last[rank]
        elapsed = (other.step_at or 0.0) - (one.step_at or 0.0)
        computing = max(elapsed - (other.step_waited or 0.0) + (one.step_waited or 0.0), 1e-3 * elapsed, 1e-9)
        speeds.append((other.samples - one.samples) / computing)
    return tuple(speeds) if min(speeds) > 0 else None
