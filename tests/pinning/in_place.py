"""Calls `cpudist.init` itself, when OpenMP's threads exist already; prints what /proc shows of them as JSON.

Each argument is a job, one after the other in this process:

- plain: nothing special.
- off: `pin=False`.
- a number: torch is told before the job to compute with so many threads.
- stray: a thread of rank 1 leaves its cores.
- more: torch is told during the job to compute with two threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import cpudist
from cpudist import job
from cpudist.pinning.threads import memory_policy


def compute() -> None:
    for _ in range(4):
        torch.randn(512, 512) @ torch.randn(512, 512)


def compute_with_two() -> None:
    """Use a second thread of OpenMP for a second, as an earlier job may have done."""
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    numbers = torch.randn(1 << 22)
    deadline = time.thread_time() + 1
    while time.thread_time() < deadline:
        numbers.cos()
    torch.set_num_threads(number)


def prepare_data(seconds: float) -> threading.Thread:
    """Return a thread that has computed for so long, as a tokenizer's threads do before training, and that stays."""
    prepared = threading.Event()

    def run() -> None:
        while time.thread_time() < seconds:
            hashlib.sha256(bytes(1 << 20))
        prepared.set()
        done.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    prepared.wait()
    return thread


done = threading.Event()


def state() -> dict[str, object]:
    masks = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has been joined may still be ending
            masks.append(sorted(os.sched_getaffinity(int(task.name))))
    return {
        "masks": sorted(masks),
        "omp_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "policy": memory_policy(),
    }


def train() -> bool:
    """Train under gloo, whose threads move messages, until every rank has been checked; return whether this one was."""
    model = cpudist.wrap(torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    check = job.require().pinning_check
    for _ in range(48 if check is not None else 1):
        model(torch.randn(1024, 1024)).square().mean().backward()
        cpudist.step(optimizer)
        looked = torch.tensor(check is not None and check.looked)
        dist.all_reduce(looked, dist.ReduceOp.MIN)
        if looked:
            break
    return check is not None and check.looked


def run_job(kind: str) -> dict[str, object]:
    threads = torch.get_num_threads()
    if kind.isdecimal():
        torch.set_num_threads(int(kind))
    compute()
    before = state()
    done.clear()
    world = cpudist.init("gloo", pin=kind != "off")
    # As long as this thread so far: counted from the start of the process, it would be one that computes.
    helper = prepare_data(time.thread_time() if kind == "plain" else 0.0)
    if kind == "stray" and world.rank == 1:
        assert helper.native_id is not None
        os.sched_setaffinity(helper.native_id, range(os.cpu_count() or 1))
    if kind == "more":
        torch.set_num_threads(2)
    looked = train()
    compute()
    during = state()
    cpudist.shutdown()
    done.set()
    helper.join()
    found = {"kind": kind, "rank": world.rank, "looked": looked, "before": before, "during": during, "after": state()}
    torch.set_num_threads(threads)
    return found


def main() -> None:
    compute_with_two()
    for kind in sys.argv[1:]:
        sys.stdout.write(json.dumps(run_job(kind)) + "\n")
        sys.stdout.flush()


main()
