"""Finds the headers, libraries and flags of oneCCL and torch for compiling the ccl backend."""

import sys
import sysconfig
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from cpudist.compiler import Compiler
from cpudist.errors import UserError

PACKAGE = "oneccl-cpu-devel"

_STATIC_LIBRARY = "lib/ccl/cpu/lib/libccl.a"
_HEADER = "include/oneapi/ccl.hpp"
_HWLOC = "lib/libhwloc.so.15"


@cache
def find_oneccl() -> Path | None:
    """Return the folder with the ``include`` and ``lib`` of pip's oneCCL; None without it, UserError if incomplete."""
    return _find(PACKAGE, "build", _HEADER, _STATIC_LIBRARY, _HWLOC)


@cache
def find_libraries() -> Path | None:
    """Return pip's folder of libraries, with oneCCL's libhwloc and perhaps MPI; None if tcmlib is not installed."""
    prefix = _find("tcmlib", "ccl", _HWLOC)
    return prefix and prefix / "lib"


def _find(name: str, extras: str, *files: str) -> Path | None:
    """Return the prefix of a package, after checking that it has `files`; None if it is not installed."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    # pip installs a wheel's files under the environment's prefix (a venv, --user or --target).
    own = next((entry for entry in package.files or [] if str(entry).endswith(files[0])), None)
    prefix = Path(str(package.locate_file(own))).resolve().parents[files[0].count("/")] if own else Path(sys.prefix)
    for needed in files:
        if not (prefix / needed).exists():
            remedy = f"reinstall it: pip install --force-reinstall 'cpudist[{extras}]'"
            raise UserError(f"{name} {package.version} at {prefix} lacks {needed}; {remedy}")
    return prefix


def compile_command(
    compiler: Compiler, oneccl: Path | None, source: Path, output: Path, libraries: str | None = None
) -> list[str]:
    """Return the command that compiles and links the extension module; `source` includes all other sources.

    If `oneccl` is given, it is linked statically. oneCCL finds the libraries that it loads at run time (libmpi,
    libfabric) by DT_RPATH, without LD_LIBRARY_PATH and setvars.sh. Unlike DT_RUNPATH, DT_RPATH applies to indirect
    dependencies too. UserError if Python's headers are missing.
    """
    import torch

    python_include = sysconfig.get_path("include")
    if not Path(python_include, "Python.h").exists():
        raise UserError(f"Python.h is not in {python_include}; install the package python3-dev")
    # pybind11 shares types only between modules with equal values of these macros; torch 2.8 exposes its own.
    pybind = [
        f'-DPYBIND11_{name}="{value}"'
        for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
        if (value := getattr(torch._C, f"_PYBIND11_{name}", None)) is not None
    ]
    without_oneccl = [
        *(*compiler.command, "-O2", "-o", str(output), str(source)),
        *pybind,
        *(f"-isystem{python_include}", *compiler.torch_options(source), "-ltorch_python"),
    ]
    if oneccl is None:
        return without_oneccl
    return [
        *(*without_oneccl, "-DWITH_ONECCL", f"-isystem{oneccl / 'include'}", f"-L{oneccl / 'lib'}"),
        *(str(oneccl / _STATIC_LIBRARY), "-l:libhwloc.so.15"),
        *(f"-Wl,-rpath,{libraries or oneccl / 'lib'}", "-Wl,--disable-new-dtags"),
    ]
