"""Compare steps with `cpudist.wrap(model, shard_optimizer=True)`, DDP and FSDP2.

    mpirun -n 2 python tools/shard_optimizer_cost.py [float32|bfloat16 ...]

Trains the model of `cpudist bench ddp` on ccl. All candidates take turns, and each turn makes a new model. Ratios are
to a step without communication in the same round. For comparison: a step that only waits for the other ranks, one
that only updates fewer parameters, and copying as many bytes within a rank's memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist.bench import workload
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import Candidate, Timings, Turns, ratio, take_turns, timed, together

Wrap = Callable[[torch.nn.Module], torch.nn.Module]
ALONE = "no communication"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def candidate(wrap: Wrap, dtype: torch.dtype, tokens: torch.Tensor, meets: bool = False, share: int = 1) -> Candidate:
    """Return a candidate that trains a wrapped model with fused AdamW.

    Args:
        wrap: wraps the model.
        dtype: bfloat16 for autocast, or float32.
        tokens: input of the model, int64 [samples, tokens].
        meets: whether all ranks wait for each other before and after the optimizer's step.
        share: the optimizer updates the first of so many parts of each parameter.
    """

    def measure(calls: int) -> list[float]:
        gc.collect()  # the last turn's model
        model = wrap(workload.bert())
        rows = [torch.nn.Parameter(p.detach()[: -(-p.size(0) // share)]) for p in model.parameters()]
        optimizer = torch.optim.AdamW(rows if share > 1 else model.parameters(), lr=1e-5, fused=True)

        def step() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            if share > 1:
                for row, parameter in zip(rows, model.parameters(), strict=True):
                    row.grad = None if parameter.grad is None else parameter.grad[: row.size(0)]
                model.zero_grad()
            if meets:
                dist.barrier()
            optimizer.step()
            if meets:
                dist.barrier()
            optimizer.zero_grad()

        return timed(step)(calls)

    return measure


def averaging(model: torch.nn.Module) -> torch.nn.Module:
    """Wrap a model in DDP with a hook that averages in the reduction, so DDP does not divide."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP takes no annotations that are text, as here
        work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    wrapped = DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def memory(world_size: int, rank: int) -> dict[str, Candidate]:
    """Return calls that move as many bytes as a step does: reduce_scatter of gradients, all_gather of parameters."""
    parts = [torch.ones(p.numel() // world_size * world_size) for p in workload.bert().parameters()]
    parts = [part for part in parts if part.numel() > 0]
    own = [part.view(world_size, -1)[rank] for part in parts]
    others = [part.view(world_size, -1)[rank - 1] for part in parts]
    group: Any = dist.group.WORLD
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG)

    def add() -> None:
        for mine, theirs in zip(own, others, strict=True):
            mine.add_(theirs)

    def copy() -> None:
        for mine, theirs in zip(own, others, strict=True):
            theirs.copy_(mine)

    calls = {
        "reduce_scatter": lambda: group.reduce_scatter_tensor_coalesced(own, parts, options).wait(),
        "its limit: add within a rank": add,
        "all_gather": lambda: group.allgather_into_tensor_coalesced(parts, own).wait(),
        "its limit: copy within a rank": copy,
    }
    return {name: timed(call) for name, call in calls.items()}


def show(head: str, timings: Mapping[str, Timings]) -> None:
    """Print a table on rank 0, with ratios to a step without communication if that was timed."""
    if dist.get_rank() != 0:
        return
    rows = [
        [name, time_cell(one), ratio_cell(ratio(one, timings[ALONE]) if ALONE in timings else None)]
        for name, one in timings.items()
    ]
    print(table([head, "time", "of no communication"], rows), flush=True)


def main() -> None:
    """Time all candidates, then the limits."""
    dtypes = sys.argv[1:] or list(DTYPES)
    world = cpudist.init("ccl")
    gloo = dist.new_group(backend="gloo")
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    ddp = partial(DistributedDataParallel, bucket_cap_mb=100)
    views = partial(ddp, gradient_as_bucket_view=True)
    wraps: dict[str, Wrap] = {
        "shard_optimizer": partial(cpudist.wrap, shard_optimizer=True),
        "DDP, bucket views": views,
        "DDP, bucket views, static graph": partial(views, static_graph=True),
        "DDP, bucket views, averaging hook": averaging,
        "DDP": ddp,
        "FSDP2": partial(fully_shard, mesh=mesh, reshard_after_forward=False),
    }
    for name in dtypes:
        step = partial(candidate, dtype=DTYPES[name], tokens=workload.tokens(world.rank))
        candidates = {
            ALONE: step(lambda model: model),
            "the same, ranks meet twice": step(lambda model: model, meets=True),
            "the same, updates its share": step(lambda model: model, share=world.size),
            **{name: step(wrap) for name, wrap in wraps.items()},
        }
        candidates = {name: together(one, gloo) for name, one in candidates.items()}
        show(name, take_turns(candidates, Turns(rounds=3, calls=4, warm_up=3)))
    limits = {name: together(one, gloo) for name, one in memory(world.size, world.rank).items()}
    show("98 MB, float32", take_turns(limits, Turns(rounds=5, calls=4, warm_up=1)))
    cpudist.shutdown()


if __name__ == "__main__":
    main()
