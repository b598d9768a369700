"""TARGET of `cpudist-train`, a script, a module or a recipe: found before the job starts, run as by Python.

`resolve` finds out what the words mean and whether the target exists, before a job is started in vain. `run` makes
sys.argv, sys.path[0] and `__main__` what they would be under plain `python`, so that pickling, dataclasses and
multiprocessing in the target see nothing unusual.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Protocol

from cpudist.errors import UserError
from cpudist.training.recipes import RECIPES


class Target(Protocol):
    """Something that a rank can run; returns when it is done, raises what it raises."""

    def run(self) -> None: ...


@dataclass(frozen=True)
class Script:
    """`cpudist-train path/to/script.py args`."""

    path: Path
    args: tuple[str, ...]

    def run(self) -> None:
        sys.argv = [str(self.path), *self.args]
        sys.path[0] = str(self.path.resolve().parent)
        runpy.run_path(str(self.path), run_name="__main__")


@dataclass(frozen=True)
class Module:
    """`cpudist-train -m package.module args`."""

    name: str
    args: tuple[str, ...]

    def run(self) -> None:
        sys.argv = [self.name, *self.args]  # runpy puts the module's file in argv[0]
        runpy.run_module(self.name, run_name="__main__", alter_sys=True)


@dataclass(frozen=True)
class Recipe:
    """`cpudist-train clm args`."""

    name: str
    args: tuple[str, ...]

    @property
    def wants_help(self) -> bool:
        """Whether the recipe is only asked for its options; no job is needed for that."""
        return "--help" in self.args or "-h" in self.args

    def run(self) -> None:
        sys.argv = [f"cpudist-train {self.name}", *self.args]
        recipe = importlib.import_module(f"cpudist.training.recipes.{self.name}")
        from cpudist.job import current  # late: it imports torch, which not every target needs

        job = current()
        if job is not None:
            job.backend.lay_out_by(recipe.SHARDING, self.name)
        recipe.main(list(self.args))


def resolve(name: str, args: list[str], *, module: bool = False) -> Target:
    """What the words of a command line mean, or a `UserError` that says what they could have been."""
    if module:
        return _module(name, args)
    if name in RECIPES:
        return Recipe(name, tuple(args))
    path = Path(name)
    if path.is_file():
        return Script(path, tuple(args))
    if path.is_dir():
        raise UserError(f"{name} is a folder; give a script in it, or -m and a package's name")
    if path.suffix == ".py" or os.sep in name:
        raise UserError(f"there is no script {name} (looked for {path.absolute()})")
    raise UserError(
        f"there is no recipe {name!r}; the recipes are: {', '.join(RECIPES)}; "
        "a script is given by its path (train.py), a module with -m (-m package.module)"
    )


def _module(name: str, args: list[str]) -> Module:
    # As `python -m`: modules in the working directory come first. Set now, since looking for it needs it.
    sys.path[0] = os.getcwd()
    if not _is_runnable(name):
        raise UserError(
            f"there is no module {name} to run; install its package, or start from the folder that it lies in"
        )
    return Module(name, tuple(args))


def _is_runnable(name: str) -> bool:
    """Whether `python -m name` would find something to run; does not import its parent packages."""
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
