"""Compile the package's C++ into shared libraries, once, in a cache that the user's jobs share."""

import fcntl
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from cpudist import user_cache
from cpudist.console import duration, say
from cpudist.errors import UserError
from cpudist.trust import why_not_trusted
from cpudist.waiting import poll

_LOG = "compile.log"
_COMPILE_SECONDS = 900.0
_SCRATCH = "compiling-"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler."""

    command: tuple[str, ...]  # an optional wrapper such as ccache, the program, and its options
    label: str  # the name of its folder in the cache, made from its name and options
    # Options for OpenMP with torch's thread pool (libgomp); empty for clang, whose runtime has another pool.
    openmp: tuple[str, ...] = ("-fopenmp",)

    def torch_options(self, source: Path) -> list[str]:
        """Return the options for a shared library of `source` that includes torch's headers and links its libraries."""
        import torch

        folder = Path(torch.__file__).parent
        return [
            *("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", *self.openmp),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-isystem{folder / include}" for include in ("include", "include/torch/csrc/api/include")),
            f"-ffile-prefix-map={source.parent}=csrc",  # makes the bytes independent of the source folder
            *(f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"),
        ]


@dataclass(frozen=True)
class Library:
    """A shared library to compile."""

    file: str  # the name of its file
    what: str  # its description in messages
    duration: str  # how long its compilation takes, for messages
    key: str  # the name of its folder in the cache, made from all inputs except the compiler
    command: Callable[[Compiler, Path], list[str]]  # returns the command with which a compiler makes the file


def find_compiler() -> Compiler | None:
    """Find the C++ compiler: $CXX, such as "ccache g++ -m64", or g++ by default; None if there is none."""
    command, label = _named()
    if not command:
        return None
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return Compiler(command, label, () if "clang" in shown else Compiler.openmp)


def _named() -> tuple[tuple[str, ...], str]:
    """Return the compiler's command, empty if there is none, and its label."""
    named = os.environ.get("CXX") or "g++"
    try:
        words = [named] if shutil.which(named) else shlex.split(named)
    except ValueError as error:
        raise UserError(f"CXX={named!r} cannot be read ({error}); correct its quotes, or unset it") from None
    programs = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    options = shlex.join(words[len(programs) :])
    name = Path(programs[-1]).name if programs else ""
    digest = f"-{zlib.crc32(options.encode()):08x}" if options else ""
    found = bool(programs) and all(map(shutil.which, programs))
    return tuple(words) if found else (), f"{name}{digest}"


def torch_release() -> str:
    """Return torch's version without "+cpu" or "+cu128": the C++ interface is the same in all builds of a release."""
    return version("torch").partition("+")[0]


def build_folder() -> Path:
    """Return the folder of compiled libraries: $CPUDIST_CACHE, or ``cpudist`` in the user's cache folder."""
    if chosen := os.environ.get("CPUDIST_CACHE"):
        return Path(chosen).expanduser()
    folder = user_cache.cache_folder()
    if folder is None:
        raise UserError("this user has no home folder for compiled libraries; set CPUDIST_CACHE to a folder")
    return folder


def find(library: Library, cache: Path | None = None) -> Path | None:
    """Return the library that the cache has from this machine's compiler; None if it has none.

    Without a compiler, any compiler's library counts. `cache`: the folder of compiled libraries; None: `build_folder`.
    """
    command, label = _named()
    found = sorted((cache or build_folder()).joinpath(library.key).glob(f"{label if command else '*'}/{library.file}"))
    return _trusted(found[-1], library.what) if found else None


def ensure(library: Library, cache: Path | None = None) -> Path:
    """Return the library of the cache, compiling it if the cache has none.

    One process compiles; others on the same machine wait for it. A machine without a compiler uses a library that
    `cpudist build` made elsewhere. Raises UserError if compiling fails, or another user could have written the library.
    """
    if built := find(library, cache):
        return built
    compiler = find_compiler()
    folder = (cache or build_folder()) / library.key
    if compiler is None:
        why = f"{library.what} must be compiled once and there is no C++ compiler {os.environ.get('CXX', 'g++')}"
        raise UserError(f"{why}; install g++, or run `cpudist build` where there is one and set CPUDIST_CACHE")
    target = folder / compiler.label / library.file
    with _lock(target.parent, library.what):
        if not target.exists():
            _compile(compiler, library, target)
    return _trusted(target, library.what)


def _trusted(file: Path, what: str) -> Path:
    """Return `file`, or raise UserError if another user can change it or one of the three folders above it."""
    for path in (file, *file.parents[:3]):
        if path.exists() and (problem := why_not_trusted(path)):
            remedy = f"correct that (as root: chown -R root {file.parents[2]}), or set CPUDIST_CACHE to another folder"
            raise UserError(f"{what} is not loaded: {problem}; {remedy}")
    return file


@contextmanager
def _lock(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases when its holder dies."""
    try:
        for path in reversed((folder, *folder.parents[:2])):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        _trusted(folder / "lock", what)
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = open(os.open(folder / "lock", flags, 0o600), "rb")  # noqa: SIM115
    except OSError as error:
        remedy = "set CPUDIST_CACHE to a folder that can be written"
        raise UserError(f"cannot write {what} to {folder} ({error.strerror}); {remedy}") from None
    with handle:
        if not poll(lambda: _take(handle), 2 * _COMPILE_SECONDS):
            raise UserError(f"another process still compiles {what} (lock {folder / 'lock'}); end it and try again")
        yield


def _take(handle: IO[bytes]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(compiler: Compiler, library: Library, target: Path) -> None:
    begin = time.monotonic()
    say(f"compiling {library.what} (once, {library.duration})")
    for left in target.parent.glob(f"{_SCRATCH}*"):  # left by a compile that was killed; this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    log = target.parent / _LOG
    # Compile into a temporary folder, then move the file, so that no process loads an incomplete one.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        command = library.command(compiler, output)
        environment = {**os.environ, "TMPDIR": scratch}
        with log.open("w") as stream:
            print(*command, file=stream, flush=True)
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
            try:
                status = subprocess.call(command, **streams, env=environment, timeout=_COMPILE_SECONDS)
            except subprocess.TimeoutExpired:
                remedy = "run `cpudist build` on a free machine"
                raise UserError(f"compiling took over {_COMPILE_SECONDS:.0f} s; {remedy}") from None
        if status != 0:
            lines = log.read_text(errors="replace").splitlines()[1:]
            first = next((line for line in lines if "error" in line), "no error line")
            raise UserError(f"compiling {library.what} failed: {first.strip()}; see {log}, or install another g++")
        output.chmod(0o755)
        os.replace(output, target)
    say(f"compiled {library.what} in {duration(time.monotonic() - begin)}")
