"""Slurm's two compressed notations: host lists (`n[01-03,7],gpu-a`) and counts per node (`2(x3),1`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cpudist.errors import UserError

_PIECE = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """Return the host names of a Slurm node list, in its order.

    Raises:
        UserError: it is not a node list.
    """
    pieces = _PIECE.findall(text)
    if ",".join(pieces) != text or not pieces:
        raise _not_understood(text)
    return [host for piece in pieces for host in _expand_piece(piece, text)]


def expand_counts(text: str) -> list[int]:
    """Return the number of tasks of each node from Slurm's notation.

    Raises:
        UserError: it is not such a list.
    """
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece)
        if match is None:
            raise _not_understood(text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _expand_piece(piece: str, text: str) -> Iterator[str]:
    """One comma-separated piece; it may hold several brackets (`r[1-2]n[1-4]`), the last one counts fastest."""
    bracket = _BRACKET.search(piece)
    if bracket is None:
        if "[" in piece or "]" in piece:
            raise _not_understood(text)
        yield piece
        return
    for number in _expand_bracket(bracket[1], text):
        for rest in _expand_piece(piece[bracket.end() :], text) if bracket.end() < len(piece) else ("",):
            yield piece[: bracket.start()] + number + rest


def _expand_bracket(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _not_understood(text)
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _not_understood(text: str) -> UserError:
    return UserError(f"Slurm's list {text!r} is not understood: set MASTER_ADDR and start the step with srun itself")
