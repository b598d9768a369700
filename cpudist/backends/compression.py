"""Names of the schemes in which gradients cross a network in fewer bits (docs/slow-networks.md)."""

from __future__ import annotations

from cpudist.errors import UserError

NONE = "none"
SCHEMES = (NONE, "bf16", "int8", "powersgd")
POWERSGD_RANK = 4


def check_scheme(text: str) -> str:
    """Return the scheme that `text` names: one of `SCHEMES`, or "powersgd:RANK".

    Raises:
        UserError: there is no such scheme.
    """
    name, colon, rank = text.partition(":")
    good_rank = not colon or (name == "powersgd" and rank.isdecimal() and int(rank) > 0)
    if name not in SCHEMES or not good_rank:
        raise UserError(f"--compress {text} is not known; give {', '.join(SCHEMES)} or powersgd:RANK, a number from 1")
    return text
