"""The ways in which the ranks of a job can work together, behind one interface (`base.py`).

`register`, `get`, `available` and `choose` are all that the rest of cpudist and its users need; what differs between
oneCCL, gloo and others stays inside each backend's own file or folder. Other packages add a backend through the
entry-point group ``cpudist.backends`` (name = "package.module:Class").

It must not know jobs, optimization, transformers, recipes or command lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points

from cpudist.backends.base import Backend
from cpudist.console import say
from cpudist.errors import UserError

__all__ = ["AUTO", "Backend", "available", "choose", "get", "names", "register"]

# What "auto" means: the first of these that can be used on every rank.
AUTO = ("ccl", "gloo")

# A class, or where to import it from when it is first asked for.
_known: dict[str, type[Backend] | str] = {
    "ccl": "cpudist.backends.ccl.backend:CclBackend",
    "gloo": "cpudist.backends.gloo:GlooBackend",
}


def register(name: str, backend: type[Backend] | str) -> None:
    """Add a backend, or replace the one of that name: a subclass of `Backend` or ``"package.module:Class"``."""
    _known[name] = backend


def names() -> list[str]:
    """The names of all backends known here, whether or not they can be used."""
    return sorted({*_known, *(point.name for point in entry_points(group="cpudist.backends"))})


def get(name: str) -> type[Backend]:
    """Return the backend class of that name.

    Raises:
        UserError: no backend has that name.
    """
    found = _known.get(name)
    if found is None:
        points = {point.name: point.value for point in entry_points(group="cpudist.backends")}
        if name not in points:
            raise UserError(f"there is no backend {name!r}; choose auto or one of {', '.join(names())}")
        found = points[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        _known[name] = found
    return found


def available() -> list[str]:
    """The names of the backends that this process could use now; compiles the ccl backend if it has to."""
    return [name for name in names() if get(name)().unavailable() is None]


def choose(name: str, ask_everyone: Callable[[str, str], list[str]], speaks: bool) -> Backend:
    """Return the backend of that name, not started, once it is known that every rank can use it.

    Args:
        name: a backend's name, or "auto". A backend that is named never gives way to another one.
        ask_everyone: tells a key and this rank's answer to all ranks; returns the answers of all, in rank order.
        speaks: whether this rank tells the user why a better one is not used.

    Raises:
        UserError: the backend does not exist, or some rank cannot use it; the same on every rank.
    """
    for candidate in AUTO if name == "auto" else (name,):
        backend = get(candidate)()
        reasons = ask_everyone(f"backend/{candidate}", backend.unavailable() or "")
        rank, reason = next(((rank, reason) for rank, reason in enumerate(reasons) if reason), (0, ""))
        if not reason:
            return backend
        if name != "auto":
            raise UserError(f"backend {candidate} cannot be used on rank {rank}: {reason}")
        if speaks:
            say(f"warning: not using {candidate}, rank {rank} says: {reason}")
    raise UserError("no backend can be used on all ranks")
