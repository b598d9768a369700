"""Calls `cpudist.init` itself, when OpenMP's threads are there already; prints what /proc says of them as JSON.

Arguments: a number of threads to choose before, "stray" to have one thread leave its cores, "off" for `pin=False`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch

import cpudist
from cpudist.machine.memory_policy import memory_policy


def compute() -> None:
    for _ in range(4):
        torch.randn(512, 512) @ torch.randn(512, 512)


def state() -> dict[str, object]:
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return {
        "masks": sorted(sorted(os.sched_getaffinity(task)) for task in tasks),
        "omp_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "policy": memory_policy(),
        "inter_op": torch.get_num_interop_threads(),
    }


def compute_with_two() -> None:
    """As a job before this one may have; such threads are no mismatch with this job's plan."""
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    numbers = torch.randn(1 << 22)
    deadline = time.thread_time() + 1
    while time.thread_time() < deadline:
        numbers.cos()
    torch.set_num_threads(number)


def main() -> None:
    compute_with_two()
    for word in sys.argv[1:]:
        if word.isdecimal():
            torch.set_num_threads(int(word))
    compute()
    before = state()
    world = cpudist.init("gloo", pin="off" not in sys.argv)
    model = cpudist.wrap(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model(torch.randn(64, 256)).square().mean().backward()
        cpudist.step(optimizer)
    compute()
    during = state()
    done = threading.Event()
    if "stray" in sys.argv and world.rank == 1:
        thread = threading.Thread(target=done.wait)
        thread.start()
        assert thread.native_id is not None
        os.sched_setaffinity(thread.native_id, range(os.cpu_count() or 1))
    cpudist.shutdown()
    done.set()
    found = {"rank": world.rank, "before": before, "during": during, "after": state()}
    sys.stdout.write(json.dumps(found) + "\n")


main()
