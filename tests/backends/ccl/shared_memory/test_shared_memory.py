"""The shared-memory transport by itself: no torch, no oneCCL, real processes, compiled here as it is in the extension.

The programs beside this file do the work (see their heads). They compare to the bit with a reference that uses nothing
of the library's.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cpudist.backends.ccl.compilation import SOURCES

HERE = Path(__file__).parent
LIBRARY = [SOURCES / "shared_memory" / "unity.cpp", SOURCES / "rendezvous.cpp", HERE / "threads.cpp"]
ADDRESS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREAD = ("-O1", "-g", "-fsanitize=thread")
SCENARIOS = ["late", "disagreement", "counts", "gone", "left", "no_memory", "no_segment", "stranger", "eager", "crowd"]
SCENARIOS += ["no_core", "requests", "fork"]
NEEDS_TIME = pytest.mark.skipif("CPUDIST_TEST_SANITIZERS" not in os.environ, reason="slow: scripts/sanitize.sh runs it")

pytestmark = [pytest.mark.job, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a program of this folder, each of its parts once per session and set of flags."""
    folder = tmp_path_factory.mktemp("programs")

    def made(name: str, flags: tuple[str, ...], *arguments: object) -> Path:
        target = folder / "-".join([name, *(flag.strip("-") for flag in flags)])
        if not target.exists():
            command = ["g++", "-std=c++20", *(flags or ("-O2",)), *arguments, "-o", target]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[:4000]
        return target

    def build(name: str, *flags: str, library: list[Path] = LIBRARY) -> Path:
        parts = [HERE / f"{name}.cpp", *library]
        objects = [made(f"{part.parent.name}-{part.stem}.o", flags, "-c", f"-I{SOURCES}", part) for part in parts]
        return made(name, flags, *objects, "-pthread")

    return build


def run(*command: object, limit: float = 120) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"[:4000]


@pytest.mark.parametrize(
    ("ranks", "calls", "threads"),
    [(1, 100, 1), (2, 300, 1), (2, 100, 2), (3, 200, 1), (3, 60, 4), (4, 200, 1), (8, 60, 1), (16, 30, 1)],
)
def test_random_calls(program: Callable[..., Path], ranks: int, calls: int, threads: int) -> None:
    run(program("stress"), "processes", ranks, calls, random.randrange(10**6), threads)


@NEEDS_TIME
def test_random_calls_under_address_sanitizer(program: Callable[..., Path]) -> None:
    run(program("stress", *ADDRESS), "processes", 3, 60, random.randrange(10**6), 2)


@NEEDS_TIME
def test_random_calls_under_thread_sanitizer(program: Callable[..., Path]) -> None:
    """Ranks are threads here, which use one mapping: the sanitizer goes by addresses."""
    parts = [path for path in (SOURCES / "shared_memory").glob("*.cpp") if path.stem not in ("unity", "segment")]
    shared = [SOURCES / "kernels" / "reduce.cpp", SOURCES / "rendezvous.cpp", SOURCES / "signature.cpp"]
    library = [HERE / "one_mapping.cpp", HERE / "threads.cpp", *parts, *shared]
    for ranks, calls, threads in ((2, 60, 1), (4, 30, 1), (2, 60, 3)):
        run(program("stress", *THREAD, library=library), "threads", ranks, calls, random.randrange(10**6), threads)


@pytest.mark.parametrize("words", ["kernels", "layout", *(f"scenarios {name}" for name in SCENARIOS)])
def test_program(program: Callable[..., Path], words: str) -> None:
    """Every instruction set computes every reduction, all ranks and threads have room, and each scenario passes."""
    name, *scenario = words.split()
    run(program(name), *scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm, which needs root")
def test_full_dev_shm_does_not_matter(program: Callable[..., Path]) -> None:
    mount = "mount -t tmpfs -o size=4096 none /dev/shm && head -c 8192 /dev/zero > /dev/shm/full"
    script = f'{mount}; test -s /dev/shm/full && exec "$@"'
    run("unshare", "--mount", "sh", "-c", script, "sh", program("stress"), "processes", 2, 50, 1)
