"""A rank's communication at one moment: the calls under way, and the last completed ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One call of `torch.distributed` as one rank made it.

    Attributes:
        name: as c10d calls the operation: "all_reduce", "recv".
        group: the process group's name; empty for the default one.
        ranks: the group's ranks in the job; None: all ranks.
        sequence: of a collective, its number among those of its group, from 1, the same on all its ranks. None for
            send and recv.
        peer: of send and recv, the other rank in the job; None where it may be any.
        bytes: size of the tensors that hold the result on this rank; None: unknown.
        dtype: "float32"; empty where there is none.
        shape: of the first of these tensors.
        seconds: since the rank called it.
    """

    name: str
    group: str = ""
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None
    peer: int | None = None
    bytes: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Calls:
    """This rank's communication at one moment.

    Attributes:
        under_way: calls that are not complete, oldest first. After a timeout: those that failed with it.
        finished: the collective that was completed last in each group.
    """

    under_way: tuple[Call, ...] = ()
    finished: tuple[Call, ...] = ()
