"""The backends, which connect the ranks of a job, behind one interface (`interface.py`).

Each backend has its own file or folder, which contains all code that is specific to its library. Another package can
add a backend, with options of its own, through the entry-point group ``cpudist.backends`` (name =
"package.module:Class"); see `Backend`.

This package must not import jobs, optimization, transformers, programs or command lines.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from cpudist.backends.interface import Backend, Devices, Option
from cpudist.console import say
from cpudist.errors import UserError

__all__ = [
    "AUTO",
    "Backend",
    "Devices",
    "Option",
    "choose",
    "get",
    "make",
    "names",
    "plugins",
    "register",
]

AUTO = ("ccl", "gloo")  # "auto" takes the first of these backends that every rank can use.

# The class of each backend, or the "module:Class" that `get` imports at its first call.
_registered: dict[str, type[Backend] | str] = {
    "ccl": "cpudist.backends.ccl.ccl_backend:CclBackend",
    "gloo": "cpudist.backends.gloo:GlooBackend",
}


def register(name: str, backend: type[Backend] | str) -> None:
    """Register a backend in this process; a backend of the same name is replaced.

    Args:
        name: its name, for ``--backend``.
        backend: a subclass of `Backend`, or ``"package.module:Class"``.

    Examples:
        >>> class Verbose(cpudist.backends.get("gloo")):
        ...     name = "verbose"
        ...     options = (cpudist.backends.Option("loud", "print every collective", bool, False),)
        >>> cpudist.backends.register("verbose", Verbose)
        >>> cpudist.backends.make("verbose", {"loud": True}).configured
        {'loud': True}
    """
    _registered[name] = backend


def names() -> list[str]:
    """Return the names of all backends, whether or not they can be used here, in alphabetical order.

    Examples:
        >>> "gloo" in cpudist.backends.names()
        True
    """
    return sorted({*_registered, *_entry_points()})


def get(name: str) -> type[Backend]:
    """Return the class of the backend `name`.

    Raises:
        UserError: no backend has that name, or its module cannot be imported.

    Examples:
        >>> cpudist.backends.get("gloo").name
        'gloo'
    """
    found = _registered.get(name) or _entry_points().get(name)
    if found is None:
        raise UserError(f"there is no backend {name!r}; choose auto or one of {', '.join(names())}")
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        try:
            found = _registered[name] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"backend {name} cannot be imported: {error}; reinstall its package") from error
    return found


def make(name: str, options: Mapping[str, Any] | None = None) -> Backend:
    """Create the backend `name` (not "auto") and configure it with the user's options, without starting it.

    Raises:
        UserError: there is no such backend, or it does not take these options.
    """
    backend = get(name)()
    backend.configure(**options or {})
    return backend


def plugins() -> dict[str, type[Backend]]:
    """Return the backends of the entry-point group that can be imported, by name."""
    found = {}
    for name in sorted(_entry_points()):
        try:
            found[name] = get(name)
        except UserError:  # reported when the user selects this backend
            continue
    return found


def choose(
    backend: str, options: Mapping[str, Any], ask_everyone: Callable[[str, str], list[str]], is_main_process: bool
) -> Backend:
    """Return a backend that every rank can use, without starting it. All ranks call this function.

    Args:
        ask_everyone: sends a key and this rank's answer to all ranks; returns all answers, in rank order.
        is_main_process: whether this rank prints why a faster backend is not used.

    Raises:
        UserError: the backend does not exist, does not take these options, or cannot be used on some rank. Every rank
            raises the same error.
    """
    chosen = first_usable(AUTO if backend == "auto" else (backend,), options, ask_everyone, is_main_process)
    if backend == "auto" and is_main_process:
        for name, other in plugins().items():
            if devices := other.devices.found():
                say(f"backend auto takes {chosen.name}, on the CPU; {devices} of this machine idle (--backend {name})")
    return chosen


def first_usable(
    candidates: Sequence[str],
    options: Mapping[str, Any],
    ask_everyone: Callable[[str, str], list[str]],
    is_main_process: bool,
) -> Backend:
    """Return the first of `candidates` that every rank can use; see `choose` for the other arguments and the errors."""
    for name in candidates:
        candidate = make(name, options)
        reasons = ask_everyone(f"backend/{name}", candidate.unavailable() or "")
        rank, reason = next(((rank, reason) for rank, reason in enumerate(reasons) if reason), (0, ""))
        if not reason:
            return candidate
        if len(candidates) == 1:
            raise UserError(f"backend {name} cannot be used on rank {rank}: {reason}")
        if is_main_process:
            say(f"warning: not using {name}, rank {rank} says: {reason}")
    raise UserError("no backend can be used on all ranks; read the warnings above, and run cpudist doctor")


@cache
def _entry_points() -> dict[str, str]:
    """Return "module:Class" of each backend that an installed package adds, by the backend's name."""
    return {point.name: point.value for point in entry_points(group="cpudist.backends")}
