"""Measure how fast one rank's threads compute and copy on this host. Times are means: minima hide a CPU quota."""

import os
import platform
import shutil
import time
from collections.abc import Callable

import psutil
import torch

from cpudist.cluster.cluster_figures import HostFigures
from cpudist.topology.machine import allowed_cpus, clock_of, cpu_quota
from cpudist.version import __version__

_SIZE = 1024  # rows and columns of the matrices
_COPIED_BYTES = 1 << 27  # more than caches hold
_SECONDS = 1.0


def measure_host(name: str, probe: str) -> HostFigures:
    """Measure this host. `probe` is a file in rank 0's working folder; empty if it cannot be written."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)  # before this process adds to it
    flops = {}
    for dtype in (torch.float32, torch.bfloat16):
        one, other = (torch.randn(_SIZE, _SIZE).to(dtype) for _ in range(2))
        flops[str(dtype).removeprefix("torch.")] = 2 * _SIZE**3 * _rate(lambda one=one, other=other: one @ other)  # type: ignore[misc]
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    return HostFigures(
        name,
        {"python": platform.python_version(), "torch": torch.__version__, "cpudist": __version__},
        cores=min(len(allowed_cpus()), torch.get_num_threads()),
        flops=flops,
        copied=2 * _COPIED_BYTES * _rate(lambda: target.copy_(source)),
        quota=cpu_quota(),
        load=load,
        clock=clock_of(min(allowed_cpus())),
        memory=psutil.virtual_memory().available,
        shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        shares_folder=not probe or os.path.exists(probe),
    )


def _rate(call: Callable[[], object]) -> float:
    """Return the number of calls per second."""
    call()
    calls, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < _SECONDS:
        call()
        calls += 1
    return calls / seconds
