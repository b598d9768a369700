"""TARGET of `cpudist-train`: a script, a module, or a command on PATH that a Python package has installed.

`resolve` checks before the job starts that the target exists. The target gets sys.argv, sys.path[0] and the module
`__main__` that plain `python` gives it, so pickling, dataclasses and multiprocessing work as usual.
"""

import builtins
import importlib.util
import os
import runpy
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cpudist.errors import UserError
from cpudist.script.frames import programs

Target = Callable[[], object]  # Runs a target to its end in this process, and raises its errors.

_HEAD_BYTES = 1024  # enough for two lines: pip writes a long path of the interpreter into the second one


def resolve(name: str, args: list[str], *, module: bool = False) -> Target:
    """Find the target that a command line names, without importing it, or raise `UserError`."""
    if module:
        # Modules in the working directory come first, as with `python -m`; the search below needs this.
        _set_first_path(os.getcwd())
        if _is_runnable(name):
            return partial(_run_module, name, args)
        remedy = "install its package, or start from the folder that it lies in"
        raise UserError(f"there is no module {name} to run; {remedy}")
    if os.path.isdir(name):
        raise UserError(f"{name} is a folder; give a script in it, or -m and a package's name")
    folders = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"  # ssh may set another PATH
    found = name if os.path.isfile(name) or os.sep in name else shutil.which(name, path=folders)
    if found is None or not os.path.isfile(found):
        raise UserError(f"there is no script {name} in {Path.cwd()}; give the path of a script, or -m and a module")
    if not found.endswith(".py"):
        _check_command(Path(found))
    return partial(_run_script, found, args)


def _check_command(path: Path) -> None:
    """Check that a file without the suffix .py is a Python program, and note the package that has installed it."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"\x7fELF") or (head.startswith(b"#!") and b"python" not in head):
        raise UserError(f"{path} is no Python program; give a script, or -m and a module")
    for entry in entry_points(group="console_scripts", name=path.name):
        programs.add(entry.module.partition(".")[0])


def _run_script(path: str, args: list[str]) -> None:
    sys.argv = [path, *args]
    if path.endswith(".pyc") or zipfile.is_zipfile(path):
        runpy.run_path(path, run_name="__main__")
        return
    file = os.path.join(os.getcwd(), path)  # as python does; abspath would resolve ".." before links
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", file)
    code = loader.source_to_code(loader.get_data(file), file)
    _run_as_main(code, __file__=file, __loader__=loader, __cached__=None)


def _run_module(name: str, args: list[str]) -> None:
    spec = importlib.util.find_spec(name)  # imports the parent packages
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    if spec is None or code is None:
        raise UserError(f"{name} has no Python code; give a script, or another module")
    sys.argv = [str(spec.origin), *args]
    module = {"__file__": spec.origin, "__cached__": spec.cached, "__loader__": spec.loader}
    _run_as_main(code, **module, __spec__=spec, __package__=spec.parent)


def _run_as_main(code: CodeType, **attributes: Any) -> None:
    """Run code as the module `__main__`, which stays in `sys.modules` for functions that run at exit."""
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, **attributes)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:  # in safe mode python adds neither the script's folder nor the working one
        sys.path[0] = folder


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
