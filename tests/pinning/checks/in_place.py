"""Calls `cpudist.init` itself, when OpenMP's threads exist already; prints what /proc shows of them as JSON.

Each argument is a job, one after the other in this process:

- plain: nothing special.
- off: `pin=False`.
- a number: torch is told before the job to compute with so many threads.
"""

import json
import os
import sys

import torch

import cpudist
from cpudist.pinning.threads import memory_policy, threads


def compute() -> None:
    """Use OpenMP's threads."""
    for _ in range(4):
        torch.randn(512, 512) @ torch.randn(512, 512)


def state() -> dict[str, object]:
    return {
        "masks": sorted(sorted(thread.mask) for thread in threads()),
        "omp_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "policy": memory_policy(),
    }


def run_job(kind: str) -> dict[str, object]:
    number = torch.get_num_threads()
    if kind.isdecimal():
        torch.set_num_threads(int(kind))
    compute()
    before = state()
    world = cpudist.init("gloo", pin=kind != "off")
    compute()
    during = state()
    cpudist.shutdown()
    found = {"kind": kind, "rank": world.rank, "before": before, "during": during, "after": state()}
    torch.set_num_threads(number)
    return found


def main() -> None:
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    compute()  # a thread of OpenMP exists before the first job
    torch.set_num_threads(number)
    for kind in sys.argv[1:]:
        sys.stdout.write(json.dumps(run_job(kind)) + "\n")
        sys.stdout.flush()


main()
