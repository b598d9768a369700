"""What a job changes in the environment and in other packages, and how all of it is taken back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_MISSING = object()


class Changes:
    """Changes that `undo` takes back, the last one first."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def variable(self, name: str, value: str) -> None:
        """Set an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value
        self.then(lambda: _restore(name, before))

    def default_variable(self, name: str, value: str) -> None:
        """Set an environment variable, unless the user has."""
        if name not in os.environ:
            self.variable(name, value)

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Take back whatever the block, by whatever it calls, does to the environment."""
        before = dict(os.environ)
        try:
            yield
        finally:
            for name in before.keys() | os.environ.keys():
                if os.environ.get(name) != before.get(name):
                    self.then(lambda name=name: _restore(name, before.get(name)))  # type: ignore[misc]

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class, a module or any other object."""
        # Not getattr: what a class inherits is not its own.
        before = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else getattr(owner, name)
        self.then(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))
        setattr(owner, name, value)

    def entry(self, mapping: dict[str, Any], key: str, value: Any) -> None:
        """Add an entry that a dictionary does not have."""
        mapping[key] = value
        self.then(lambda: mapping.pop(key, None))

    def then(self, action: Callable[[], object]) -> None:
        """Call `action` when all this is undone."""
        self._undo.callback(action)

    def undo(self) -> None:
        """Leave everything as it was; every action is tried, whatever becomes of the others."""
        self._undo.close()


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before
