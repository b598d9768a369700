"""TARGET of `cpudist-train`: a script or a module.

`resolve` checks before the job starts that the target exists. `run` sets sys.argv, sys.path[0] and `__main__` as under
plain `python`, so pickling, dataclasses and multiprocessing work as usual in the target.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Protocol

from cpudist.errors import UserError


class Target(Protocol):
    """Something that a rank can run to its end."""

    def run(self) -> None:
        """Run it to its end in this process; its errors are raised here."""


@dataclass(frozen=True)
class Script:
    """A script and its arguments: `cpudist-train path/to/script.py args`, run as `python script.py` does."""

    path: Path
    args: tuple[str, ...]

    def run(self) -> None:
        """Run the script as ``__main__``."""
        sys.argv = [str(self.path), *self.args]
        sys.path[0] = str(self.path.resolve().parent)
        runpy.run_path(str(self.path), run_name="__main__")


@dataclass(frozen=True)
class Module:
    """A module and its arguments: `cpudist-train -m package.module args`, run as `python -m` does."""

    name: str
    args: tuple[str, ...]

    def run(self) -> None:
        """Run the module as ``__main__``."""
        sys.argv = [self.name, *self.args]  # runpy puts the module's file in argv[0]
        runpy.run_module(self.name, run_name="__main__", alter_sys=True)


def resolve(name: str, args: list[str], *, module: bool = False) -> Target:
    """Find the target that a command line names, without importing it.

    Args:
        name: a script's path or a module's name.
        args: the target's own arguments.
        module: whether `name` is a module, as with `python -m`.

    Raises:
        UserError: there is no such target.
    """
    if module:
        return _module(name, args)
    path = Path(name)
    if path.is_file():
        return Script(path, tuple(args))
    if path.is_dir():
        raise UserError(f"{name} is a folder; give a script in it, or -m and a package's name")
    raise UserError(f"there is no script {name} in {Path.cwd()}; give the path of a script, or -m and a module")


def _module(name: str, args: list[str]) -> Module:
    # Modules in the working directory come first, as with `python -m`; the search below needs it.
    sys.path[0] = os.getcwd()
    if not _is_runnable(name):
        raise UserError(
            f"there is no module {name} to run; install its package, or start from the folder that it lies in"
        )
    return Module(name, tuple(args))


def _is_runnable(name: str) -> bool:
    """Return whether `python -m name` would find something to run, without importing its parent packages."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top) if top else None
    fullname = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        fullname = f"{fullname}.{part}"
        spec = PathFinder.find_spec(fullname, spec.submodule_search_locations)
    if spec is None:
        return False
    if spec.submodule_search_locations is None:
        return True
    return PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations) is not None
