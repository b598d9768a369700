"""TARGET of `cpudist-train`: a script or a module.

`resolve` checks before the job starts that the target exists. The target gets sys.argv, sys.path[0] and `__main__` as
under plain `python`, so pickling, dataclasses and multiprocessing work as usual.
"""

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

from cpudist.errors import UserError

# Runs a target to its end in this process, and raises its errors.
Target = Callable[[], object]


def resolve(name: str, args: list[str], *, module: bool = False) -> Target:
    """Find the target that a command line names, without importing it.

    Raises:
        UserError: there is no such target.
    """
    if module:
        # Modules in the working directory come first, as with `python -m`; the search below needs this.
        sys.path[0] = os.getcwd()
        if _is_runnable(name):
            return partial(_run_module, name, args)
        raise UserError(
            f"there is no module {name} to run; install its package, or start from the folder that it lies in"
        )
    path = Path(name)
    if path.is_file():
        return partial(_run_script, path, args)
    if path.is_dir():
        raise UserError(f"{name} is a folder; give a script in it, or -m and a package's name")
    raise UserError(f"there is no script {name} in {Path.cwd()}; give the path of a script, or -m and a module")


def _run_script(path: Path, args: list[str]) -> None:
    sys.argv = [str(path), *args]
    sys.path[0] = str(path.resolve().parent)
    runpy.run_path(str(path), run_name="__main__")


def _run_module(name: str, args: list[str]) -> None:
    sys.argv = [name, *args]  # runpy puts the module's file in argv[0]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


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
