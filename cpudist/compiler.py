"""Compiles the package's C++ into shared libraries, once, in a cache that the user's jobs share."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import runpy
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from cpudist import user_cache
from cpudist.console import counted_seconds, duration, say
from cpudist.errors import UserError
from cpudist.private import why_not_trusted
from cpudist.waiting import poll

_LOG = "compile.log"
_COMPILE_SECONDS = 900.0
_SAY_AFTER_SECONDS = 2.0
_SCRATCH = "compiling-"

# g++ runs other programs, and a signal that kills this process reaches none of them. The shell's standard input is a
# pipe of this process: its end removes the temporary files, and kills all of them.
_ENDS_WITH_PIPE = """
exec 3<&0
(read line <&3; rm -rf "$0"; kill -KILL 0) &
"$@" 3<&- </dev/null
status=$?
kill -KILL $!
exit $status
"""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, and its name with its version, which names its folder in the cache."""

    command: str
    label: str

    @property
    def openmp(self) -> list[str]:
        """Options for OpenMP's threads: torch's own pool, libgomp's. clang would add a runtime with another one."""
        return [] if "clang" in self.label else ["-fopenmp"]

    def torch_options(self, source: Path) -> list[str]:
        """Return the options for a shared library of `source` that includes torch's headers and links its libraries."""
        import torch

        folder = Path(torch.__file__).parent
        return [
            *("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", *self.openmp),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-isystem{folder / include}" for include in ("include", "include/torch/csrc/api/include")),
            f"-ffile-prefix-map={source.parent}=csrc",  # errors name source files; bytes do not depend on the folder
            *(f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"),
        ]


@dataclass(frozen=True)
class Library:
    """A shared library to compile.

    Attributes:
        file: the name of its file.
        what: what it is, in messages.
        duration: how long it takes to compile, in messages.
        key: its folder in the cache, named by what its bytes depend on, apart from the compiler.
        command: returns the command with which a compiler makes the file.
    """

    file: str
    what: str
    duration: str
    key: str
    command: Callable[[Compiler, Path], list[str]]


@cache
def find_compiler() -> Compiler | None:
    """Find the C++ compiler $CXX, or g++; None where there is none."""
    command = shutil.which(os.environ.get("CXX") or "g++")
    if command is None:
        return None
    version = subprocess.run(
        [command, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, timeout=60, check=False
    )
    return Compiler(command, f"{Path(command).name}-{version.stdout.strip() or 'unknown'}")


@cache
def torch_version() -> str:
    """Return torch.__version__, read from its file: importing torch takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise UserError("torch is not installed; pip install torch==2.13.0")
    return str(runpy.run_path(str(Path(found.origin).with_name("version.py")))["__version__"])


def torch_release() -> str:
    """Return torch's version without "+cpu" or "+cu128": the C++ interface is the same in all builds of a release."""
    return torch_version().partition("+")[0]


def cache_folder() -> Path:
    """Return the folder of compiled libraries: $CPUDIST_CACHE, or ``cpudist`` in the user's cache folder.

    Raises:
        UserError: there is neither.
    """
    if chosen := os.environ.get("CPUDIST_CACHE"):
        return Path(chosen).expanduser()
    folder = user_cache.cache_folder()
    if folder is None:
        raise UserError("this user has no home folder for compiled libraries; set CPUDIST_CACHE to a folder")
    return folder


def find(library: Library, cache: Path | None = None) -> Path | None:
    """Return the library of the cache, made by any compiler; None if it is not compiled.

    Args:
        library: what was to be compiled.
        cache: the folder of compiled libraries; None for `cache_folder`.

    Raises:
        UserError: another user could have put it there.
    """
    found = sorted((cache or cache_folder()).joinpath(library.key).glob(f"*/{library.file}"))
    return _trusted(found[0], library.what) if found else None


def ensure(library: Library, cache: Path | None = None) -> Path:
    """Return the library of the cache, compiling it if the cache has none.

    One process compiles; others on the same machine wait for it. A machine without a compiler uses a library that
    `cpudist build` made elsewhere.

    Args:
        library: what to compile.
        cache: the folder of compiled libraries; None for `cache_folder`.

    Raises:
        UserError: there is no compiler, the compilation fails, or another user could have put the library there.
    """
    if built := find(library, cache):
        return built
    compiler = find_compiler()
    folder = (cache or cache_folder()) / library.key
    if compiler is None:
        raise UserError(
            f"{library.what} must be compiled once and there is no C++ compiler; install the package g++, "
            f"or run `cpudist build` where there is one and set CPUDIST_CACHE (looked in {folder})"
        )
    target = folder / compiler.label / library.file
    with _lock(target.parent, library.what):
        if not target.exists():
            _compile(compiler, library, target)
    return _trusted(target, library.what)


def compile_for_wheel(library: Library, target: Path) -> Path:
    """Compile the library into a new folder, and return `target`, its file there; see scripts/wheels.sh.

    Raises:
        UserError: there is no compiler, or the compilation fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise UserError("there is no C++ compiler; install the package g++")
    target.parent.mkdir(parents=True)
    _compile(compiler, library, target)
    (target.parent / _LOG).unlink()
    return target


def _trusted(file: Path, what: str) -> Path:
    """Return `file`, which has the folders of its compiler and its key above it in the cache.

    Raises:
        UserError: another user could have put it there.
    """
    for path in (file, *file.parents[:3]):
        if path.exists() and (problem := why_not_trusted(path)):
            raise UserError(
                f"{what} is not loaded: {problem}; only you or root may own and write the cache: mend"
                f" that (as root: chown -R root {file.parents[2]}), or set CPUDIST_CACHE to another folder"
            )
    return file


@contextmanager
def _lock(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases when its holder dies.

    Raises:
        UserError: the folder cannot be written, or another process holds the lock for too long.
    """
    try:
        for path in reversed((folder, *folder.parents[:2])):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        _trusted(folder / "lock", what)
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = open(os.open(folder / "lock", flags, 0o600), "r+")  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"cannot write {what} to {folder} ({error.strerror}); set CPUDIST_CACHE to a folder that can be written"
        ) from None
    with handle:
        if not poll(lambda: _take(handle), _SAY_AFTER_SECONDS):
            with suppress(OSError):  # raised on other ranks: one says it
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                say(f"waiting for {_holder(handle)}, which compiles {what}")
            with counted_seconds():
                taken = poll(lambda: _take(handle), 2 * _COMPILE_SECONDS)
            if not taken:
                raise UserError(f"{_holder(handle)} still compiles {what} (lock {handle.name}); end it and try again")
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%H:%M:%S')}")
        handle.flush()
        yield


def _take(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: IO[str]) -> str:
    """Return the process that has the lock, as it has written itself into the file."""
    handle.seek(0)
    return handle.read() or "another process"


def _compile(compiler: Compiler, library: Library, target: Path) -> None:
    begin = time.monotonic()
    say(f"compiling {library.what} (once, {library.duration})")
    for left in target.parent.glob(f"{_SCRATCH}*"):  # of a machine that went down; this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    log = target.parent / _LOG
    # Compiled into a temporary folder, then moved, so that no process loads an incomplete file.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch, counted_seconds():
        output = Path(scratch) / target.name
        if _run(library.command(compiler, output), scratch, log) != 0:
            lines = log.read_text(errors="replace").splitlines()[1:]
            first = next((line for line in lines if "error" in line), "no error line")
            raise UserError(f"compiling {library.what} failed: {first.strip()}; see {log}, or install another g++")
        output.chmod(0o755)
        os.replace(output, target)
    say(f"compiled {library.what} in {duration(time.monotonic() - begin)}")


def _run(command: list[str], scratch: str, log: Path) -> int:
    """Run a compiler, with its output in `log`, and return its exit status.

    Raises:
        UserError: it takes too long.
    """
    with log.open("w") as output:
        output.write(" ".join(command) + "\n")
        output.flush()
        with subprocess.Popen(
            ["sh", "-c", _ENDS_WITH_PIPE, scratch, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": scratch},
            start_new_session=True,
        ) as process:
            try:
                return process.wait(_COMPILE_SECONDS)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"compiling took over {_COMPILE_SECONDS:.0f} s; run `cpudist build` on a free machine"
                ) from None
