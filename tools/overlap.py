"""Measure how much of DDP's communication is hidden behind the backward pass.

    mpirun -f HOSTS -n 2 -ppn 1 python tools/overlap.py [ROUNDS]

Trains the BERT of `cpudist bench ddp`, 4 x 128 tokens per rank, in float32, and times a step without communication,
the reduction of as many gradients by itself, and DDP's step; all take turns. Hidden is the time by which DDP's step
is shorter than the first two together, as a share of the reduction. Use several hosts: inside a machine the reduction
keeps the CPUs busy, so nothing is hidden.
"""

from __future__ import annotations

import statistics
import sys

import torch
import torch.distributed as dist

import cpudist
from cpudist.bench.ddp import Buckets, Training
from cpudist.bench.report import table, time_cell
from cpudist.bench.timing import Turns, both_groups, take_turns, timed, together

ALONE = "no communication"
BUCKETS_MB = (25, 100)


def main() -> None:
    """Time all candidates; rank 0 prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    world = cpudist.init("ccl")
    groups = both_groups()
    training = Training(world.rank, (4, 128))
    gradients = torch.zeros(sum(parameter.numel() for parameter in training.model.parameters()))
    candidates = {
        (ALONE, ""): training.candidate(torch.float32, groups["ccl"], Buckets(25, views=True), communicate=False)
    }
    for backend, group in groups.items():
        candidates[backend, "alone"] = timed(lambda group=group: dist.all_reduce(gradients, group=group))
        for bucket in BUCKETS_MB:
            buckets = Buckets(bucket, views=True)
            candidates[backend, f"{bucket} MB"] = training.candidate(torch.float32, group, buckets)
    candidates = {name: together(one, groups["gloo"]) for name, one in candidates.items()}
    timings = take_turns(candidates, Turns(rounds=rounds, calls=2, warm_up=2))
    if world.rank == 0:
        rows = []
        for (backend, what), one in timings.items():
            hidden = ""
            if what.endswith("MB"):
                alone, wire = timings[ALONE, ""].by_round, timings[backend, "alone"].by_round
                shares = [(a + w - s) / w for a, w, s in zip(alone, wire, one.by_round, strict=True)]
                hidden = f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"
            rows.append([backend, what, time_cell(one), hidden])
        print(table([world.launcher, "", "time", "hidden, of the reduction"], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
