"""How much of DDP's communication is hidden behind the backward pass: mpirun -f HOSTS -n 2 -ppn 1 python FILE [ROUNDS].

The BERT of `cpudist bench ddp`, 4 x 128 tokens per rank, in float32: a step without communication, the reduction of as
many gradients by itself, and DDP's step. Hidden is what a step takes less than both one after the other, as a share of
the reduction. All contenders take turns. For links that are slower than memory: within a machine nothing can be hidden.
"""

from __future__ import annotations

import statistics
import sys

import torch
import torch.distributed as dist

import cpudist
from cpudist.bench import table
from cpudist.bench.ddp import Buckets, Training
from cpudist.bench.measure import both_groups, timed, together
from cpudist.bench.timing import Turns, take_turns

ALONE = "no communication"
BUCKETS_MB = (25, 100)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    world = cpudist.init("ccl")
    groups = both_groups()
    training = Training(world.rank, (4, 128))
    gradients = torch.zeros(sum(parameter.numel() for parameter in training.model.parameters()))
    contenders = {
        (ALONE, ""): training.contender(torch.float32, groups["ccl"], Buckets(25, views=True), communicate=False)
    }
    for backend, group in groups.items():
        contenders[backend, "alone"] = timed(lambda group=group: dist.all_reduce(gradients, group=group))
        for bucket in BUCKETS_MB:
            buckets = Buckets(bucket, views=True)
            contenders[backend, f"{bucket} MB"] = training.contender(torch.float32, group, buckets)
    contenders = {name: together(one, groups["gloo"]) for name, one in contenders.items()}
    timings = take_turns(contenders, Turns(rounds=rounds, calls=2, warm_up=2))
    if world.rank == 0:
        rows = []
        for (backend, what), one in timings.items():
            hidden = ""
            if what.endswith("MB"):
                alone, wire = timings[ALONE, ""].by_round, timings[backend, "alone"].by_round
                shares = [(a + w - s) / w for a, w, s in zip(alone, wire, one.by_round, strict=True)]
                hidden = f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"
            rows.append([backend, what, table.time_cell(one), hidden])
        print(table.render([world.launcher, "", "time", "hidden, of the reduction"], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
