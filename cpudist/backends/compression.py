"""Options for slow networks: gradients in fewer bits, and fewer exchanges between hosts (docs/slow-networks.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.backends.interface import Backend

NONE = "none"
AUTO: Literal["auto"] = "auto"
SCHEMES = (AUTO, NONE, "bf16", "int8", "powersgd")
POWERSGD_RANK = 4

OUTER = ("nesterov", NONE)  # the first is the default


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


def has(backend: Backend, scheme: str) -> bool:
    """Return whether gradients can cross the network in `scheme`, which `check_scheme` has returned."""
    return scheme in (AUTO, NONE) or scheme.partition(":")[0] in backend.compressions


def check_backend(backend: Backend, scheme: str) -> None:
    """Check that gradients can cross the network in `scheme`, which `check_scheme` has returned.

    Raises:
        UserError: they cannot on this backend; the message names the remedy.
    """
    if not has(backend, scheme):
        known = " or ".join(sorted(backend.compressions))
        remedy = f"use {known}" if known else "leave it out"
        raise UserError(f"the backend {backend.name} cannot compress gradients by --compress {scheme}; {remedy}")


def check_sync_every(value: str | int) -> int | Literal["auto"]:
    """Return after how many steps hosts exchange, a number from 1 on, or "auto".

    Raises:
        UserError: `value` is neither.
    """
    text = str(value)
    if text == AUTO:
        return AUTO
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--sync-every {text} is no number of steps; give a whole number from 1 on, or {AUTO}")
    return int(text)


def check_outer(name: str) -> str:
    """Return the name of the step that hosts make after an exchange.

    Raises:
        UserError: there is no such step.
    """
    if name not in OUTER:
        raise UserError(f"--outer {name} is not known; give {' or '.join(OUTER)}")
    return name
