"""What has been changed in other people's modules, and how to change it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from cpudist.errors import UserError

_MISSING = object()


class Patches:
    """Changes that `undo` takes back, last one first."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def variable(self, name: str, value: str) -> None:
        """Set an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value
        self.then(lambda: _restore(name, before))

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
        """Leave everything as it was."""
        self._undo.close()


def check_known(module: ModuleType, versions: range, known: bool, remedy: str) -> None:
    """Refuse a package whose major version is not among `versions`, or that has not the parts that are changed.

    Raises:
        UserError: names the version that is installed and a `pip install` that mends it.
    """
    package = __import__(module.__name__.partition(".")[0])
    if not known or int(package.__version__.partition(".")[0]) not in versions:
        raise UserError(
            f"cpudist does not know {package.__name__} {package.__version__} and cannot keep it on the job's process "
            f"group; pip install '{remedy}'"
        )


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before
