"""Divide samples among ranks in whole shares."""

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
    """
    limits = most or (samples,) * len(speeds)
    # Proportional parts of what is not taken by smallest shares never exceed the best shares.
    free = (samples - least * len(speeds)) / sum(speeds)
    shares = [min(max(least, int(free * speed)), limit) for speed, limit in zip(speeds, limits, strict=True)]
    for _ in range(samples - sum(shares)):  # Every other sample goes to the rank that would then be done first.
        below = (rank for rank, share in enumerate(shares) if share < limits[rank])
        shares[min(below, key=lambda rank: (shares[rank] + 1) / speeds[rank])] += 1
    return tuple(shares)


def seconds(shares: Sequence[int], speeds: Sequence[float]) -> float:
    """Return the time of the rank that is done last."""
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))
