"""Check the libraries that a process with torch loads: torch, OpenMP runtimes, the allocator and the ccl backend."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpudist.backends.ccl.compilation import find_built
from cpudist.doctor.versions import companions_that_fit
from cpudist.errors import UserError
from cpudist.findings import Finding
from cpudist.pinning.preload import allocator_decided, wanted_allocator
from cpudist.topology.kernel_files import Files

_SECONDS = 120
# The compiled module is loaded but not started: under a launcher oneCCL would wait for the other ranks.
_PROBE = """
import ctypes, importlib, json, sys
import torch
built, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
error = ""
if built:
    try:
        ctypes.CDLL(built)
    except OSError as problem:
        error = str(problem)
print()
print(json.dumps({"ccl": error, "maps": open("/proc/self/maps").read()}))
"""
_OPENMP = {"libgomp": "GNU's", "libiomp5": "Intel's", "libomp": "LLVM's"}
_GNU = "libgomp"
_ALLOCATORS = {"libtcmalloc": "tcmalloc", "libjemalloc": "jemalloc", "libmimalloc": "mimalloc"}


@dataclass(frozen=True)
class Loaded:
    """The mapped libraries of a process with torch, its companions and the ccl backend."""

    maps: str = ""  # the text of its /proc/self/maps; empty if torch cannot be imported
    torch_error: str = ""  # why torch, or a package made for it, cannot be imported; empty if it can
    ccl_error: str = ""  # why the compiled ccl backend cannot be loaded; empty if it can, or there is none


@cache
def load() -> Loaded:
    """Load a rank's libraries in a new process and return what it has mapped."""
    try:
        built = str(find_built() or "")
    except UserError:  # there is no oneCCL
        built = ""
    command = [sys.executable, "-c", _PROBE, built, *companions_that_fit()]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Loaded(torch_error=f"it takes more than {_SECONDS} s")
    if probe.returncode != 0:
        return Loaded(torch_error=(probe.stderr.strip().splitlines() or [f"exit status {probe.returncode}"])[-1])
    found = json.loads(probe.stdout.splitlines()[-1])
    return Loaded(found["maps"], ccl_error=found["ccl"])


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the mapped libraries after torch is imported, with this environment's LD_PRELOAD."""
    loaded = load()
    if loaded.torch_error:
        message = f"import torch fails: {loaded.torch_error}"
        yield Finding("error", "torch", message, "reinstall torch in this environment")
    else:
        yield from libraries(loaded.maps, env)


def libraries(maps: str, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the OpenMP runtimes and the allocator of a process, given its /proc/self/maps and its variables."""
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if line.count("/")}
    yield from _openmp(sorted(path for path in paths if _is_openmp(path)), env.get("LD_PRELOAD", ""))
    yield _allocator({path.name for path in paths}, env)


def _openmp(runtimes: list[Path], preloaded: str) -> Iterator[Finding]:
    listed = ", ".join(f"{_vendor(path)} {path}" for path in runtimes)
    first = next((Path(name) for name in preloaded.replace(":", " ").split() if _is_openmp(Path(name))), None)
    if first is not None and not first.name.startswith(_GNU):
        yield Finding("ok", "OpenMP", f"{_vendor(first)} serves all libraries, because LD_PRELOAD names it: {first}")
    elif len({_vendor(path) for path in runtimes}) > 1:
        # Intel's and LLVM's runtimes also have the functions of GNU's; the reverse is not true.
        other = next(path for path in runtimes if not path.name.startswith(_GNU))
        preload = ":".join(str(path) for path in (wanted_allocator({}), other) if path)
        message = f"{len(runtimes)} OpenMP runtimes in one process, each with threads on the same cores: {listed}"
        remedy = f"export LD_PRELOAD={preload}, and {_vendor(other)} serves all libraries"
        yield Finding("warning", "OpenMP", message, remedy)
    elif len(runtimes) > 1:  # packages such as scikit-learn have their own copy of GNU's runtime
        yield Finding("ok", "OpenMP", f"{listed}: copies of one runtime, whose threads sleep while the other computes")
    elif runtimes:
        yield Finding("ok", "OpenMP", f"one runtime, {_vendor(runtimes[0])}: {runtimes[0]}")


def _is_openmp(path: Path) -> bool:
    return path.name.startswith(tuple(f"{name}{end}" for name in _OPENMP for end in (".", "-")))


def _vendor(path: Path) -> str:
    return next(vendor for prefix, vendor in _OPENMP.items() if path.name.startswith(prefix))


def _allocator(names: set[str], env: Mapping[str, str]) -> Finding:
    loaded = next((name for lib, name in _ALLOCATORS.items() if any(found.startswith(lib) for found in names)), None)
    if loaded is not None:
        return Finding("ok", "allocator", f"{loaded}, preloaded")
    if decided := allocator_decided(env):
        return Finding("ok", "allocator", f"glibc's; cpudist-train does not change it, because {decided} is set")
    if library := wanted_allocator({}):
        return Finding("ok", "allocator", f"cpudist-train preloads tcmalloc: {library}")
    message = "glibc's: without cpudist.optimize a training step takes about a quarter more time than with tcmalloc"
    remedy = "install tcmalloc (Debian: apt-get install libtcmalloc-minimal4); cpudist-train then preloads it"
    return Finding("warning", "allocator", message, remedy)
