"""Divide samples among ranks in whole shares."""

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def divide(
    samples: int, speeds: tuple[float, ...], least: int = 1, most: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the ranks' shares of `samples` with which the last rank is done as early as possible.

    If `speeds` are shares of another number of samples, `samples` are divided in nearly the same proportions.

    Args:
        samples: the number of samples; at least `least` for each rank.
        speeds: the speed of each rank, in any unit.
        least: the smallest share.
        most: the largest share of each rank; their sum is at least `samples`. None: no limit.
    """
    limits = most or (samples,) * len(speeds)
    # Dividing only the samples beyond all smallest shares by speed never exceeds the best shares.
    free = (samples - least * len(speeds)) / sum(speeds)
    shares = [min(max(least, int(free * speed)), limit) for speed, limit in zip(speeds, limits, strict=True)]
    for _ in range(samples - sum(shares)):  # Each remaining sample goes to the rank that would finish it first.
        below = (rank for rank, share in enumerate(shares) if share < limits[rank])
        shares[min(below, key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    return tuple(shares)


def seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Return the time of the rank that is done last with these shares."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
