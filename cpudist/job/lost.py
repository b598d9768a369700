"""Says which ranks are gone without a word, how, and what they were doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cpudist.job.stall import last_seen
from cpudist.job.whereabouts import Whereabouts

_MOST_RANKS = 3  # of those on one host that are named each with what it did

_HOW = {
    "closed": "ended without a word (killed, out of memory, or crashed?)",
    "silent": "cannot be reached any more (host down, or its link?)",
}


@dataclass(frozen=True)
class Loss:
    """A rank whose connection with the job's store broke, and how: "closed" by its end, or "silent" for too long."""

    rank: int
    how: Literal["closed", "silent"]

    @classmethod
    def from_line(cls, line: str) -> Loss:
        """What the store's server writes down."""
        rank, how = line.split()
        return cls(int(rank), "silent" if how == "silent" else "closed")


def explain_losses(losses: Sequence[Loss], seen: Mapping[int, Whereabouts], hosts: Sequence[str]) -> list[str]:
    """One sentence for each of the first ranks that were lost, and one for all the others.

    Args:
        losses: in the order in which they were noticed.
        seen: where each rank was last, as far as it has said so.
        hosts: the host's name of each rank.
    """
    sentences = []
    for loss in losses[:_MOST_RANKS]:
        sentence = f"rank {loss.rank} on {hosts[loss.rank]} {_HOW[loss.how]}"
        place = seen.get(loss.rank)
        sentences.append(f"{sentence}; it was {last_seen(place)}" if place is not None else sentence)
    if len(losses) > _MOST_RANKS:
        sentences.append(f"{len(losses) - _MOST_RANKS} more ranks are lost")
    return sentences
