"""Measure latency and bandwidth of the links between hosts, pair by pair in rounds."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from cpudist.bench.cluster_figures import LinkFigures

_SMALL_BYTES, _ROUND_TRIPS = 8, 20
_FIRST_BYTES, _MOST_BYTES = 1 << 18, 1 << 26
_SECONDS = 0.15  # approximate duration of one large message
_LARGE_MESSAGES = 3
_TO, _FROM = 0, 1  # the direction of a large message, seen from the rank that takes the time


def pairs_in_rounds(hosts: int) -> list[tuple[int, int]]:
    """Return all pairs of hosts in rounds. A round has each host in at most one pair (the circle method)."""
    circle: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found += [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def measure_links(own: int, ranks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[LinkFigures]:
    """Return both directions of the links from host `own` to hosts of higher numbers.

    One of each host's `ranks` calls it. `pairs` are pairs of hosts, in the order of their rounds.
    """
    found = []
    for low, high in pairs:
        if own == low:
            found += _ask(low, high, ranks[high])
        elif own == high:
            _answer(ranks[low])
    return found


def _ask(own: int, other: int, rank: int) -> list[LinkFigures]:
    """Measure the link to a rank that calls `_answer`. All times are taken here."""
    latency = min(_timed(_SMALL_BYTES, rank, _TO) for _ in range(_ROUND_TRIPS)) / 2
    links = []
    for way, ends in ((_TO, (own, other)), (_FROM, (other, own))):
        size = _FIRST_BYTES
        while min(_timed(size, rank, way) for _ in range(2)) < _SECONDS / 4 and size < _MOST_BYTES:
            size *= 4
        best = min(_timed(size, rank, way) for _ in range(1 + _LARGE_MESSAGES))
        # Subtract at most half of the time, because a busy host answers small messages late.
        links.append(LinkFigures(*ends, latency, size / max(best - 2 * latency, best / 2)))
    dist.send(torch.tensor([0, _TO]), rank)
    return links


def _timed(size: int, rank: int, way: int) -> float:
    """Return the seconds of a message of `size` bytes and of a small one in the other direction."""
    message, small = torch.zeros(size, dtype=torch.uint8), torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    begin = time.perf_counter()
    dist.send(torch.tensor([size, way]), rank)
    if way == _TO:
        dist.send(message, rank)
        dist.recv(small, rank)
    else:
        dist.recv(message, rank)
    return time.perf_counter() - begin


def _answer(rank: int) -> None:
    """Take part in the measurement of another rank, until it sends a size of 0."""
    small = torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    asked = torch.zeros(2, dtype=torch.int64)
    while True:
        dist.recv(asked, rank)
        size, way = asked.tolist()
        if size == 0:
            return
        message = torch.zeros(size, dtype=torch.uint8)
        if way == _TO:
            dist.recv(message, rank)
            dist.send(small, rank)
        else:
            dist.send(message, rank)
