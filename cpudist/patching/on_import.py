"""Run an action on a module once the script has imported it.

Importing transformers or accelerate up front would take seconds, even in scripts that never use them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> Callable[[], None]:
    """Call `action` with the module `name`: now if it is loaded, otherwise at the end of its import.

    Return a function that cancels the call; it does not undo a call that was made.
    """
    if name in sys.modules:
        spec = sys.modules[name].__spec__
        if spec is not None and getattr(spec, "_initializing", False):  # called within the import of the module itself
            return _at_end_of_import(spec, action)
        action(sys.modules[name])
        return lambda: None
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Watched(ModuleSpec):
    """A spec that calls `actions` when the import system marks it as initialised, after the module's execution.

    Python has no other hook for the end of an import that has begun. An example: accelerate imports torch, and torch
    loads its backends' entry points, one of which asks for an action on accelerate.
    """

    actions: list[Action]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # otherwise the import has failed
                for action in self.actions:
                    action(sys.modules[self.name])


def _at_end_of_import(spec: ModuleSpec, action: Action) -> Callable[[], None]:
    if not isinstance(spec, _Watched):
        spec.__class__ = _Watched
    actions = vars(spec).setdefault("actions", [])
    actions.append(action)
    return lambda: actions.remove(action) if action in actions else None


class _Finder(MetaPathFinder):
    """Finds one module through the finders after this one, and watches its import."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        following = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in following)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None:
            _at_end_of_import(spec, self._action)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
