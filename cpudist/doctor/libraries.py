"""The OpenMP runtime and the allocator that a process with torch has: a fresh process is asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.doctor.finding import Finding
from cpudist.machine.files import Files
from cpudist.pinning.preload import wanted_library

_SECONDS = 120
_ASK = "import torch; print(open('/proc/self/maps').read())"
_OPENMP = {"libgomp": "GNU's", "libiomp5": "Intel's", "libomp": "LLVM's"}
_ALLOCATORS = {"libtcmalloc": "tcmalloc", "libjemalloc": "jemalloc", "libmimalloc": "mimalloc"}


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """What is mapped once torch is imported, with this environment's LD_PRELOAD."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False, env=dict(env)
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "error", "torch", f"import torch takes more than {_SECONDS} s", "look at the file system it lies on"
        )
        return
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("error", "torch", f"import torch fails: {last}", "reinstall torch in this environment")
        return
    yield from libraries(asked.stdout)


def libraries(maps: str) -> Iterator[Finding]:
    """What the text of /proc/self/maps says."""
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if line.count("/")}
    runtimes = sorted(str(path) for path in paths if path.name.startswith(tuple(_OPENMP)))
    if len(runtimes) > 1:
        yield Finding(
            "warning",
            "OpenMP",
            f"{len(runtimes)} OpenMP runtimes in one process, each with its own threads: {', '.join(runtimes)}",
            "set LD_PRELOAD to one of Intel's or GNU's for the whole job, or remove the package that brings the other",
        )
    elif runtimes:
        name = next(whose for prefix, whose in _OPENMP.items() if Path(runtimes[0]).name.startswith(prefix))
        yield Finding("ok", "OpenMP", f"one runtime, {name}: {runtimes[0]}")
    yield _allocator({path.name for path in paths})


def _allocator(names: set[str]) -> Finding:
    loaded = next((name for lib, name in _ALLOCATORS.items() if any(found.startswith(lib) for found in names)), None)
    if loaded is not None:
        return Finding("ok", "allocator", f"{loaded}, preloaded")
    if library := wanted_library({}):
        return Finding("ok", "allocator", f"cpudist-train preloads tcmalloc: {library}")
    return Finding(
        "warning",
        "allocator",
        "glibc's: without cpudist.optimize a training step takes about a quarter more time than with tcmalloc",
        "install tcmalloc (Debian: apt-get install libtcmalloc-minimal4); cpudist-train then preloads it",
    )
