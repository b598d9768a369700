"""Measure a step across hosts with gradients compressed, and with local steps, beside one without communication.

    mpirun -f HOSTS -n 2 -ppn 1 python tools/slow_network.py [ROUNDS [float32|bfloat16 [CANDIDATE,...]]]

Trains the BERT of `cpudist bench ddp`, 4 x 128 tokens per rank, in the DDP of `cpudist.wrap`; gloo's is torch's own.
All candidates take turns of eight steps, of which the mean counts: one of them ends with a meeting of the hosts where
these train apart. bfloat16 is autocast. tests/bed makes hosts on one machine, with links as slow as one likes.

Hidden is the time by which a step is shorter than a step without communication and the average of as many values as the
model has gradients one after the other, as a share of that average.

Candidates: auto, none, bf16, int8, powersgd, sync-every, gloo; all of them by default.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist import job
from cpudist.bench import workload
from cpudist.bench.report import table, time_cell
from cpudist.bench.timing import CCL, GLOO, Timings, Turns, both_groups, take_turns, timed, together

ALONE = "no communication"
APART, EVERY = "sync-every", 8
CANDIDATES = ("auto", "none", "bf16", "int8", "powersgd", APART, GLOO)
EXCHANGED = ("none", "bf16", "int8", GLOO)  # those whose average is timed by itself
WARM_UP = 12  # `auto` chooses after the fifth step, PowerSGD begins to compress after the tenth


def step_of(what: str, group: ProcessGroup, tokens: torch.Tensor, autocast: bool) -> Callable[[], None]:
    """Return a function that trains a model of its own by one step; only gloo's DDP is in `group`."""
    plain = workload.bert()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    if what == APART:
        model = cpudist.wrap(plain, sync_every=EVERY)
    elif what == GLOO:
        model = DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=True)
    else:
        model = cpudist.wrap(plain, compress="none" if what == ALONE else what)

    def step() -> None:
        with model.no_sync() if what == ALONE else nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP if what in ("auto", "powersgd") else 3):
        step()
    return step


def average_of(what: str, group: ProcessGroup) -> Callable[[], object]:
    """Return a function that averages as many values as the model has gradients."""
    values = torch.zeros(sum(parameter.numel() for parameter in workload.bert().parameters()))
    if what == GLOO:
        return lambda: dist.all_reduce(values, group=group)
    average = job.require().backend.averaging(what)
    return lambda: average(values)


def hidden(alone: Timings, average: Timings, step: Timings) -> str:
    """Return which share of the average a step hides: the median of the rounds, and the spread."""
    rounds = zip(alone.by_round, average.by_round, step.by_round, strict=True)
    shares = [(a + w - s) / w for a, w, s in rounds]
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


def main() -> None:
    """Time all candidates; rank 0 prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    dtype = sys.argv[2] if len(sys.argv) > 2 else "float32"
    chosen = sys.argv[3].split(",") if len(sys.argv) > 3 else CANDIDATES
    world = cpudist.init(CCL)
    gloo = both_groups()[GLOO]
    tokens = workload.tokens(world.rank, (4, 128))
    steps = {what: timed(step_of(what, gloo, tokens, dtype == "bfloat16")) for what in (ALONE, *chosen)}
    averages = {(what,): timed(average_of(what, gloo)) for what in EXCHANGED if what in chosen}
    candidates = {name: together(one, gloo) for name, one in {**steps, **averages}.items()}
    timings = take_turns(candidates, Turns(rounds=rounds, calls=EVERY, warm_up=0, means=True))
    if world.rank == 0:
        alone = timings[ALONE]
        rows = []
        for what in steps:
            step, average = timings[what], timings.get((what,))
            cells = [time_cell(average), hidden(alone, average, step)] if average else ["", ""]
            rows.append([what, time_cell(step), f"{step.median / alone.median:.2f}", *cells])
        head = [dtype, "a step", "of a step without communication", "the average by itself", "hidden"]
        print(table(head, rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
