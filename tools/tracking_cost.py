"""Measure what it costs a call that each rank publishes where it is.

    python tools/tracking_cost.py               one process
    mpirun -n 2 python tools/tracking_cost.py   ranks

One process: an all_reduce of one element by the ccl backend as it is, and by one compiled without the lines that track
a call; both take turns. Several ranks: the same with and without the status that a thread publishes once a second.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import cpudist
from cpudist.backends.ccl import compilation, extension, toolchain
from cpudist.job.watch import Watch

# Lines that are left out: when a call began, which call of its group was the last, and the branch for hooks.
_TRACKING = {
    "work.cpp": [("started_(Clock::now()),", "started_(),")],
    "engine.cpp": [
        ("  group.completed(work.call());\n", ""),
        ("  if (group.hook && ", "  if (false && "),
    ],
}


def main() -> None:
    """Compare in one process, or on all ranks."""
    world = cpudist.init("ccl")
    if world.size == 1:
        compare_calls()
    else:
        compare_publishing(world.rank)
    cpudist.shutdown()


def compare_calls(rounds: int = 8000, calls: int = 100) -> None:
    """Time calls with and without tracking, in turns, and print the difference."""
    with tempfile.TemporaryDirectory() as scratch:
        modules = {"tracked": extension.load(), "not tracked": _without_tracking(Path(scratch))}
    groups = {name: module.create_group(dist.HashStore(), 0, [0], 60.0, name, True) for name, module in modules.items()}
    times: dict[str, list[float]] = {name: [] for name in groups}
    tensor = torch.ones(1)
    for _ in range(rounds):
        for name, group in groups.items():
            begin = time.perf_counter()
            for _ in range(calls):
                group.allreduce(tensor).wait()
            times[name].append((time.perf_counter() - begin) / calls)
    _print(times)
    modules["not tracked"].close()


def compare_publishing(rank: int, rounds: int = 6, calls: int = 200_000) -> None:
    """Time calls while a thread publishes the status and while it does not; rank 0 prints the difference."""
    publish_status, beats = Watch._publish_status, []

    def timed(watch: Watch) -> None:
        begin = time.thread_time()
        publish_status(watch)
        beats.append(time.thread_time() - begin)

    tells = {"tracked": timed, "not tracked": lambda watch: None}
    times: dict[str, list[float]] = {name: [] for name in tells}
    tensor = torch.ones(1)
    for _ in range(rounds):
        for name, tell in tells.items():
            Watch._publish_status = tell  # type: ignore[method-assign]
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor)
            times[name].append((time.perf_counter() - begin) / calls)
    if rank == 0:
        _print(times)
        print(f"the thread: {1e3 * statistics.median(beats):.2f} ms of CPU time a second")


def _without_tracking(folder: Path) -> Any:
    """Return the extension module, compiled from sources without the lines that track calls."""
    shutil.copytree(compilation.SOURCES, folder / "csrc")
    for name, replacements in _TRACKING.items():
        source = folder / "csrc" / name
        text = source.read_text()
        for old, new in replacements:
            assert text.count(old) == 1, f"{name} has changed: {old!r}"
            text = text.replace(old, new)
        source.write_text(text)
    compiler, output = toolchain.find_compiler(), folder / "cpudist_ccl.so"
    assert compiler is not None
    command = toolchain.compile_command(compiler, toolchain.find_oneccl(), folder / "csrc" / "unity.cpp", output)
    subprocess.run(command, check=True)
    loader = ExtensionFileLoader("cpudist_ccl", str(output))
    spec = spec_from_file_location("cpudist_ccl", output, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _print(times: dict[str, list[float]]) -> None:
    for name, seconds in times.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        print(f"{name}: {1e6 * middle:.3f} us a call (half of the turns {1e6 * low:.3f} to {1e6 * high:.3f})")
    pairs = sorted(with_ - without for with_, without in zip(*times.values(), strict=True))
    low, middle, high = statistics.quantiles(pairs, n=4)
    print(f"difference: {1e6 * middle:+.3f} us a call (half of the turns {1e6 * low:+.3f} to {1e6 * high:+.3f})")


if __name__ == "__main__":
    main()
