"""Divide samples among ranks in whole shares."""

import heapq
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def divide(
    samples: int, speeds: tuple[float, ...], least: int = 1, most: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the ranks' shares of `samples` with which the last rank is done as early as possible.

    With shares as `speeds`, other numbers of samples are divided in the same proportions.

    Args:
        samples: at least `least` for each rank.
        speeds: samples per second of each rank, in any unit.
        least: the smallest share.
        most: the largest share of each rank, together at least `samples`; None: no limit.

    Examples:
        >>> divide(16, (3.0, 1.0))
        (12, 4)
    """
    limits = most or (samples,) * len(speeds)
    # Proportional parts of what is not taken by smallest shares never exceed the best shares.
    free = (samples - least * len(speeds)) / sum(speeds)
    shares = [min(max(least, int(free * speed)), limit) for speed, limit in zip(speeds, limits, strict=True)]
    # Every other sample goes to the rank that would then be done first.
    ends = [((share + 1) / speed, rank) for rank, (share, speed) in enumerate(zip(shares, speeds, strict=True))]
    heapq.heapify(ends)
    left = samples - sum(shares)
    while left:
        rank = ends[0][1]
        if shares[rank] == limits[rank]:
            heapq.heappop(ends)
            continue
        shares[rank], left = shares[rank] + 1, left - 1
        heapq.heapreplace(ends, ((shares[rank] + 1) / speeds[rank], rank))
    return tuple(shares)


def seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Return the time of the rank that is done last."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
