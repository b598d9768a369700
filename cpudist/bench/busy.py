"""Other work on the cores where ranks communicate: a process on each that computes all the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Ends by itself when the rank that has started it is gone, however that ended.
_COMPUTE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = int(sys.argv[2])
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextmanager
def busy(cpus: Iterable[int]) -> Iterator[None]:
    """Keep each of these CPUs busy with one process while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", _COMPUTE, str(cpu), str(os.getpid())]) for cpu in cpus]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
