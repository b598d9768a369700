"""Schemes for compressing gradients on slow networks (docs/slow-networks.md)."""

from cpudist.backends.interface import Backend
from cpudist.errors import UserError, expect

NONE = "none"
AUTO = "auto"
SCHEMES = (AUTO, NONE, "bf16", "int8", "powersgd")
POWERSGD_RANK = 4


def check_scheme(text: str, asked: str) -> str:
    """Return `text` if it is one of `SCHEMES` or "powersgd:RANK"; otherwise raise UserError.

    `asked` is the option and value that the user gave, such as "--compress zip", for the error message.
    """
    expect("the compression", text, str)
    name, colon, rank = text.partition(":")
    good_rank = not colon or (name == "powersgd" and rank.isdecimal() and int(rank) > 0)
    if name not in SCHEMES or not good_rank:
        raise UserError(f"{asked} is not known; give {', '.join(SCHEMES)} or powersgd:RANK, a number from 1")
    return text


def has(backend: Backend, scheme: str) -> bool:
    return scheme in (AUTO, NONE) or scheme.partition(":")[0] in backend.compressions


def check_supported(backend: Backend, scheme: str, asked: str) -> None:
    """Check that `backend` supports `scheme`, a result of `check_scheme`; raise `UserError` if not."""
    if not has(backend, scheme):
        known = " or ".join(sorted(backend.compressions))
        remedy = f"use {known}" if known else "leave it out"
        raise UserError(f"the backend {backend.name} cannot compress gradients as {asked} says; {remedy}")
