"""The OpenMP runtime and the allocator that a process with torch has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.doctor.finding import Finding
from cpudist.doctor.probe import load
from cpudist.machine.files import Files
from cpudist.pinning.preload import allocator_decided, wanted_allocator

_OPENMP = {"libgomp": "GNU's", "libiomp5": "Intel's", "libomp": "LLVM's"}
_GNU = "libgomp"
_ALLOCATORS = {"libtcmalloc": "tcmalloc", "libjemalloc": "jemalloc", "libmimalloc": "mimalloc"}


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """What is mapped once torch is imported, with this environment's LD_PRELOAD."""
    loaded = load(env)
    if loaded.torch_error:
        yield Finding(
            "error", "torch", f"import torch fails: {loaded.torch_error}", "reinstall torch in this environment"
        )
        return
    yield from libraries(loaded.maps, env)


def libraries(maps: str, env: Mapping[str, str]) -> Iterator[Finding]:
    """What the text of /proc/self/maps says of a process with these variables."""
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if line.count("/")}
    yield from _openmp(sorted(path for path in paths if _is_openmp(path)), env.get("LD_PRELOAD", ""))
    yield _allocator({path.name for path in paths}, env)


def _openmp(runtimes: list[Path], preloaded: str) -> Iterator[Finding]:
    listed = ", ".join(f"{_whose(path)} {path}" for path in runtimes)
    first = next((Path(name) for name in preloaded.replace(":", " ").split() if _is_openmp(Path(name))), None)
    if first is not None and not first.name.startswith(_GNU):
        yield Finding("ok", "OpenMP", f"{_whose(first)} serves all, since LD_PRELOAD names it: {first}")
    elif len({_whose(path) for path in runtimes}) > 1:
        # Intel's and LLVM's have the functions of GNU's as well; the reverse is not true.
        other = next(path for path in runtimes if not path.name.startswith(_GNU))
        preload = ":".join(str(path) for path in (wanted_allocator({}), other) if path)
        yield Finding(
            "warning",
            "OpenMP",
            f"{len(runtimes)} OpenMP runtimes in one process, each with threads of its own on the same cores: {listed}",
            f"export LD_PRELOAD={preload}, and {_whose(other)} serves all",
        )
    elif len(runtimes) > 1:  # a package beside torch that brings GNU's along, such as scikit-learn
        yield Finding("ok", "OpenMP", f"{listed}: copies of one runtime, whose threads sleep while the other computes")
    elif runtimes:
        yield Finding("ok", "OpenMP", f"one runtime, {_whose(runtimes[0])}: {runtimes[0]}")


def _is_openmp(path: Path) -> bool:
    return path.name.startswith(tuple(f"{name}{end}" for name in _OPENMP for end in (".", "-")))


def _whose(path: Path) -> str:
    return next(whose for prefix, whose in _OPENMP.items() if path.name.startswith(prefix))


def _allocator(names: set[str], env: Mapping[str, str]) -> Finding:
    loaded = next((name for lib, name in _ALLOCATORS.items() if any(found.startswith(lib) for found in names)), None)
    if loaded is not None:
        return Finding("ok", "allocator", f"{loaded}, preloaded")
    if decided := allocator_decided(env):
        return Finding("ok", "allocator", f"glibc's, and cpudist-train leaves it, since {decided} is set")
    if library := wanted_allocator({}):
        return Finding("ok", "allocator", f"cpudist-train preloads tcmalloc: {library}")
    return Finding(
        "warning",
        "allocator",
        "glibc's: without cpudist.optimize a training step takes about a quarter more time than with tcmalloc",
        "install tcmalloc (Debian: apt-get install libtcmalloc-minimal4); cpudist-train then preloads it",
    )
