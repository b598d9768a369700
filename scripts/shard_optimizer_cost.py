"""What a training step takes under `cpudist.wrap(model, shard_optimizer=True)`, DDP and FSDP2: mpirun -n 2 python FILE.

The model and step of `cpudist bench ddp`, on ccl. All contenders take turns, and each turn makes the model anew. Ratios
are to a step without communication, round by round.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist.bench import table, workload
from cpudist.bench.measure import timed, together
from cpudist.bench.timing import Contender, Turns, ratio, take_turns

Wrap = Callable[[torch.nn.Module], torch.nn.Module]
ALONE = "no communication"


def contender(wrap: Wrap, dtype: torch.dtype, tokens: torch.Tensor) -> Contender:
    """Steps of fused AdamW on a model that `wrap` has wrapped."""

    def measure(calls: int) -> list[float]:
        gc.collect()  # the last turn's model
        model = wrap(workload.bert())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def step() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return timed(step)(calls)

    return measure


def main() -> None:
    world = cpudist.init("ccl")
    gloo = dist.new_group(backend="gloo")
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    ddp = partial(DistributedDataParallel, bucket_cap_mb=100)
    wraps: dict[str, Wrap] = {
        ALONE: lambda model: model,
        "shard_optimizer": partial(cpudist.wrap, shard_optimizer=True),
        "DDP, bucket views": partial(ddp, gradient_as_bucket_view=True),
        "DDP": ddp,
        "FSDP2": partial(fully_shard, mesh=mesh, reshard_after_forward=False),
    }
    for dtype in (torch.float32, torch.bfloat16):
        tokens = workload.tokens(world.rank)
        contenders = {name: together(contender(wrap, dtype, tokens), gloo) for name, wrap in wraps.items()}
        timings = take_turns(contenders, Turns(rounds=3, calls=4, warm_up=3))
        if world.rank == 0:
            rows = [
                [name, table.time_cell(one), table.ratio_cell(ratio(one, timings[ALONE]))]
                for name, one in timings.items()
            ]
            print(table.render([str(dtype), "step", "of no communication"], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
