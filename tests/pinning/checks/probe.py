"""Trains a little under DDP, and prints as a line of JSON what /proc says of every thread of this rank meanwhile."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cpudist.pinning.threads import threads


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    maps = Path("/proc/self/maps").read_text()
    found = {
        "rank": dist.get_rank(),
        "main": sorted(os.sched_getaffinity(0)),
        "threads": [sorted(thread.mask) for thread in threads()],
        "omp_threads": torch.get_num_threads(),
        "argv": sys.argv[1:],
        "stdin": sys.stdin.read() if dist.get_rank() == 0 else "",
        "preloaded": os.environ.get("CPUDIST_PRELOADED") == str(os.getpid()),
        "tcmalloc": "libtcmalloc" in maps,
    }
    sys.stdout.write(json.dumps(found) + "\n")


main()
