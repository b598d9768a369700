"""Prints what /proc shows of the threads of this rank, as lines of JSON. Each argument is a job, one after the other:

- plain: `cpudist.init`, when OpenMP's threads exist already; before, during and after the job.
- off: the same with `pin=False`.
- a number: torch is told before the job to compute with so many threads.
- train: none of its own; this rank of `cpudist-train` trains a little under DDP. What follows is not looked at.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import cpudist
from cpudist.pinning.rank_cpus import thread_masks


def compute() -> None:
    for _ in range(4):
        torch.randn(512, 512) @ torch.randn(512, 512)


def state() -> dict[str, object]:
    return {
        "masks": sorted(map(sorted, thread_masks().values())),
        "omp_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def trained() -> dict[str, object]:
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    for _ in range(4):
        model(torch.randn(64, 256)).square().mean().backward()
    return {
        **state(),
        "rank": dist.get_rank(),
        "main": sorted(os.sched_getaffinity(0)),
        "argv": sys.argv[1:],
        "stdin": sys.stdin.read() if dist.get_rank() == 0 else "",
        "preloaded": os.environ.get("CPUDIST_PRELOADED") == str(os.getpid()),
        "tcmalloc": "libtcmalloc" in Path("/proc/self/maps").read_text(),
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
    if sys.argv[1] == "train":
        sys.stdout.write(json.dumps(trained()) + "\n")
        return
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    compute()  # a thread of OpenMP exists before the first job
    torch.set_num_threads(number)
    for kind in sys.argv[1:]:
        sys.stdout.write(json.dumps(run_job(kind)) + "\n")
        sys.stdout.flush()


main()
