"""The ways in which the ranks of a job can work together, behind one interface.

`register`, `get` and `available` are all that the rest of cpudist and its users need; what differs between oneCCL, gloo
and XLA stays inside each backend's own file or folder. Other packages add a backend through the entry-point group
``cpudist.backends`` (name = "package.module:Class"). Nothing in here knows about launchers' command lines, Trainer or
recipes.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from cpudist.backends.base import Backend
from cpudist.errors import UserError

__all__ = ["Backend", "available", "get", "register"]

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
        UserError: when no backend has that name.
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
