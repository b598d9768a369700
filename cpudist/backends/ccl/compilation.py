"""Compiles the C++ part into a cache: once per combination of torch, Python, compiler and oneCCL.

c10d's C++ interface belongs to one torch version, so a binary serves that version only.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from cpudist.backends.ccl.toolchain import Compiler, OneCcl, compile_command, find_compiler, find_oneccl
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.private import home, why_not_trusted
from cpudist.waiting import poll

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"  # only in a platform wheel
_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
_MODULE = "cpudist_ccl.so"
_LOG = "compile.log"
# From a folder in PREBUILT to the environment's lib: lib/python3.X/site-packages/cpudist/backends/ccl/prebuilt/torch….
_LIBRARIES = "/".join([".."] * 7)
_COMPILE_SECONDS = 900.0
_SCRATCH = "compiling-"


def cache_folder() -> Path:
    """Return the folder of compiled backends: $CPUDIST_CACHE, or ``cpudist`` in the user's cache folder.

    Raises:
        UserError: there is neither.
    """
    if chosen := os.environ.get("CPUDIST_CACHE"):
        return Path(chosen).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "cpudist"
    folder = home()
    if folder is None:
        raise UserError("this user has no home folder for the compiled backend; set CPUDIST_CACHE to a folder")
    return folder / ".cache" / "cpudist"


def find_built() -> Path | None:
    """Return the compiled module for this environment; None if neither the wheel nor the cache has one.

    Raises:
        UserError: oneCCL is missing.
    """
    oneccl = find_oneccl()
    return prebuilt(oneccl) or _find(cache_folder() / _key(oneccl), find_compiler())


def ensure_built(cache: Path | None = None) -> Path:
    """Return the compiled module for this environment, compiling it if neither the wheel nor the cache has one.

    One process compiles; others on the same machine wait for it. A machine without a compiler uses a binary that
    `cpudist build` made elsewhere, with any compiler, for the same torch, Python and oneCCL.

    Args:
        cache: the folder of compiled backends; None for `cache_folder`.

    Raises:
        UserError: oneCCL, a compiler or a header is missing, or the compilation fails.
    """
    oneccl = find_oneccl()
    if came_with_wheel := prebuilt(oneccl):
        return came_with_wheel
    cache = cache or cache_folder()
    compiler = find_compiler()
    folder = cache / _key(oneccl)
    built = _find(folder, compiler)
    if built:
        return built
    if compiler is None:
        raise UserError(
            f"the ccl backend must be compiled once and there is no C++ compiler; install the package g++, "
            f"or run `cpudist build` where there is one and set CPUDIST_CACHE (looked in {folder})"
        )
    target = folder / compiler.label / _MODULE
    with _lock(target.parent):
        if not target.exists():
            _compile(compiler, oneccl, target)
    return _trusted(target)


def prebuilt(oneccl: OneCcl) -> Path | None:
    """Return the module that the installed wheel has brought for this torch and Python; None if there is none.

    It finds oneCCL's and MPI's libraries beside its own environment only.
    """
    module = PREBUILT / _prebuilt_for() / _MODULE
    return module if module.exists() and (module.parent / _LIBRARIES).resolve() == oneccl.lib.resolve() else None


def prebuild(folder: Path) -> Path:
    """Compile the module that a wheel brings for this torch and Python, and return it; see scripts/wheels.sh.

    Args:
        folder: the wheel's `PREBUILT`.

    Raises:
        UserError: oneCCL, a compiler or a header is missing, or the compilation fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise UserError("there is no C++ compiler; install the package g++")
    target = folder / _prebuilt_for() / _MODULE
    target.parent.mkdir(parents=True)
    _compile(compiler, find_oneccl(), target, f"$ORIGIN/{_LIBRARIES}")
    (target.parent / _LOG).unlink()
    return target


def _prebuilt_for() -> str:
    # Without "+cpu" or "+cu128": c10d's C++ interface is the same in all builds of a release.
    return f"torch{_torch_version().partition('+')[0]}-{_PYTHON}"


def _key(oneccl: OneCcl) -> str:
    content = hashlib.sha256(str(oneccl.prefix).encode())  # the binary has it as DT_RPATH
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        content.update(source.read_bytes())
    return f"torch{_torch_version()}-{_PYTHON}-oneccl{oneccl.version}-{content.hexdigest()[:12]}"


@cache
def _torch_version() -> str:
    """torch.__version__, read from its file: importing torch takes seconds, which `find_built` does without."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise UserError("torch is not installed; pip install torch==2.13.0")
    return str(runpy.run_path(str(Path(found.origin).with_name("version.py")))["__version__"])


def _find(folder: Path, compiler: Compiler | None) -> Path | None:
    made_by = glob.escape(compiler.label) if compiler else "*"
    found = sorted(folder.glob(f"{made_by}/{_MODULE}"))
    return _trusted(found[0]) if found else None


def _trusted(library: Path) -> Path:
    """Return `library`, which has the folders of its compiler and its key above it in the cache.

    Raises:
        UserError: another user could have put it there.
    """
    for path in (library, *library.parents[:3]):
        if path.exists() and (problem := why_not_trusted(path)):
            raise UserError(
                f"the compiled ccl backend is not loaded: {problem}; only you or root may own and write the cache: mend"
                f" that (as root: chown -R root {library.parents[2]}), or set CPUDIST_CACHE to another folder"
            )
    return library


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases when its holder dies.

    Raises:
        UserError: the folder cannot be written, or another process holds the lock for too long.
    """
    try:
        for path in reversed((folder, *folder.parents[:2])):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        _trusted(folder / "lock")
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = open(os.open(folder / "lock", flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"cannot write the compiled backend to {folder} ({error.strerror}); "
            "set CPUDIST_CACHE to a folder that can be written"
        ) from None
    with handle:
        if not poll(lambda: _take(handle), _COMPILE_SECONDS):
            raise UserError(
                f"another process has been compiling for {_COMPILE_SECONDS:.0f} s "
                f"(lock {handle.name}); end it and try again"
            )
        yield


def _take(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(compiler: Compiler, oneccl: OneCcl, target: Path, libraries: str | None = None) -> None:
    import torch

    say(f"compiling the ccl backend for torch {torch.__version__} and oneCCL {oneccl.version} (once, a minute or two)")
    # Compiled into a temporary folder, then moved, so that no process loads an incomplete file.
    for left in target.parent.glob(f"{_SCRATCH}*"):  # of a process that was killed; this one holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        command = compile_command(compiler, oneccl, SOURCES / "unity.cpp", output, libraries)
        log = target.parent / _LOG
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"compiling the ccl backend took over {_COMPILE_SECONDS:.0f} s; run `cpudist build` on a free machine"
            ) from None
        log.write_text(" ".join(command) + "\n" + done.stdout + done.stderr)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no error line")
            raise UserError(f"compiling the ccl backend failed: {first.strip()}; see {log}, or install another g++")
        output.chmod(0o755)
        os.replace(output, target)
