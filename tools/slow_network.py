"""Measure a step across hosts with gradients compressed, and with local steps, beside one without communication.

    mpirun -f HOSTS -n 2 -ppn 1 python tools/slow_network.py [ROUNDS [float32|bfloat16]]

Trains the BERT of `cpudist bench ddp`, 4 x 128 tokens per rank; all candidates take turns of eight steps, of which the
mean counts: one of them ends with a meeting of the hosts where these train apart. bfloat16 is autocast. tests/bed makes
hosts on one machine, with links as slow as one likes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist import job
from cpudist.bench import workload
from cpudist.bench.report import table, time_cell
from cpudist.bench.timing import CCL, GLOO, Turns, both_groups, take_turns, timed, together

ALONE = "no communication"
APART, EVERY = "sync-every 8", 8
ON_CCL = (ALONE, "none", "bf16", "int8", "powersgd", APART)
CANDIDATES = (*((CCL, what) for what in ON_CCL), (GLOO, "none"))
WARM_UP = 12  # PowerSGD begins to compress after the tenth step


def step_of(what: str, group: ProcessGroup, tokens: torch.Tensor, autocast: bool) -> Callable[[], None]:
    """Return a function that trains a model of its own by one step."""
    plain = workload.bert()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    if what == APART:
        model = cpudist.wrap(plain, sync_every=EVERY)
    else:
        model = DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=True)
        job.require().backend.compress(model, "none" if what == ALONE else what)

    def step() -> None:
        with model.no_sync() if what == ALONE else nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP if what == "powersgd" else 3):
        step()
    return step


def main() -> None:
    """Time all candidates; rank 0 prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    dtype = sys.argv[2] if len(sys.argv) > 2 else "float32"
    world = cpudist.init(CCL)
    groups = both_groups()
    tokens = workload.tokens(world.rank, (4, 128))
    candidates = {
        (backend, what): together(timed(step_of(what, groups[backend], tokens, dtype == "bfloat16")), groups[GLOO])
        for backend, what in CANDIDATES
    }
    timings = take_turns(candidates, Turns(rounds=rounds, calls=EVERY, warm_up=0, means=True))
    if world.rank == 0:
        alone = timings[CCL, ALONE].median
        rows = [
            [backend, what, time_cell(one), f"{one.median / alone:.2f}"] for (backend, what), one in timings.items()
        ]
        print(table([dtype, "", "time", "of a step without communication"], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
