"""Batches of few shapes, for backends that compile a program for each: see `Backend.fixed_shapes`."""

from __future__ import annotations

from cpudist import job

_LENGTHS = 4


def padding(max_length: int) -> int | None:
    """A collator's ``pad_to_multiple_of``: at most 4 lengths, none above `max_length`; None where any will do."""
    this = job.current()
    if this is None or not this.backend.fixed_shapes:
        return None
    return next(max_length // lengths for lengths in range(_LENGTHS, 0, -1) if max_length % lengths == 0)
