"""Compiles the C++ part, once per combination of torch, Python and oneCCL.

c10d's C++ interface changes with each torch version, so a binary fits one version only. If oneCCL is not installed,
the module is compiled without it, and MPI carries the messages between hosts.
"""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

from cpudist import compiler
from cpudist.backends.ccl.toolchain import PACKAGE, compile_command, find_libraries, find_oneccl
from cpudist.compiler import Library

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"  # exists only in a platform wheel
_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
MODULE = "cpudist_ccl.so"
MODULE_WITHOUT_ONECCL = "cpudist_mpi.so"
# Path to the environment's lib, relative to lib/python3.X/site-packages/cpudist/backends/ccl/prebuilt/torch….
LIBRARIES = "/".join([".."] * 7)


def module(oneccl: Path | None, libraries: str | None = None) -> Library:
    """Describe the extension module of this environment.

    Args:
        oneccl: the folder of the oneCCL to link; None: no oneCCL.
        libraries: the module's DT_RPATH; None: the folder ``lib`` in `oneccl`. Wheels use `LIBRARIES`.
    """
    return Library(
        MODULE if oneccl else MODULE_WITHOUT_ONECCL,
        "the ccl backend",
        "45 to 90 seconds of a core",
        _key(oneccl),
        lambda compiler, output: compile_command(compiler, oneccl, SOURCES / "unity.cpp", output, libraries),
    )


def find_built() -> Path | None:
    """Return the compiled module for this environment; None if neither the wheel nor the cache has one."""
    return prebuilt() or compiler.find(module(find_oneccl()))


def ensure_built(cache: Path | None = None) -> Path:
    """Return this environment's compiled module, compiling it if needed; UserError if that is impossible or fails."""
    return prebuilt() or compiler.ensure(module(find_oneccl()), cache)


def prebuilt() -> Path | None:
    """Return the installed wheel's compiled module for this torch and Python; None if there is none.

    The module with oneCCL needs libhwloc, which it finds only in the environment in which it is installed.
    """
    folder = PREBUILT / prebuilt_for()
    with_oneccl, without = folder / MODULE, folder / MODULE_WITHOUT_ONECCL
    if with_oneccl.exists() and (folder / LIBRARIES).resolve() == find_libraries():
        return with_oneccl
    return without if without.exists() and find_oneccl() is None else None


def prebuilt_for() -> str:
    """Return the folder in `PREBUILT` for this torch and Python."""
    return f"torch{compiler.torch_release()}-{_PYTHON}"


def _key(oneccl: Path | None) -> str:
    content = hashlib.sha256(str(oneccl or "").encode())  # the binary contains this path as DT_RPATH
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        content.update(source.read_bytes())
    carrier = f"oneccl{version(PACKAGE)}" if oneccl else "mpi"
    return f"torch{version('torch')}-{_PYTHON}-{carrier}-{content.hexdigest()[:12]}"
