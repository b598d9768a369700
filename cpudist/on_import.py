"""Run an action on a module once the script has imported it.

Importing transformers or accelerate up front would take seconds, even in scripts that never use them.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> Callable[[], None]:
    """Call `action` with the module `name`: now if it is loaded, otherwise at the end of its import.

    Returns:
        A function that cancels the call; it does not undo a call that was made.
    """
    if name in sys.modules:
        spec = sys.modules[name].__spec__
        if getattr(spec, "_initializing", False):  # called from within the import of the module itself
            return _at_end_of_import(spec, action)
        action(sys.modules[name])
        return lambda: None
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.remove


def _at_end_of_import(spec: Any, action: Action) -> Callable[[], None]:
    """Call `action` when the import system marks `spec` as initialised; its module is still being executed."""

    class Announcing(ModuleSpec):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                cancel()
                if self.name in sys.modules:  # otherwise the import has failed
                    action(sys.modules[self.name])

    def cancel() -> None:
        spec.__class__ = before

    before = spec.__class__
    spec.__class__ = Announcing
    return cancel


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the finders after this one, and wraps the loader that they return."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Runs the module's own loader, then the action."""

    def __init__(self, loader: importlib.abc.Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # inspect and pickle read these: they must name the module's own loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)
