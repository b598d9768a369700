"""The transports against each other: `compare.py CASES`. The same calls on a group of each, on random numbers.

Shared memory promises more than oneCCL does: the same bits on every rank and in every run.
"""

from __future__ import annotations

import os
import random
import sys
import zlib

import torch
import torch.distributed as dist
from program import leave

import cpudist
from cpudist.backends.ccl import extension

world = cpudist.init("ccl", timeout=60)
ours = dist.new_group()
os.environ["CPUDIST_TRANSPORT"] = "oneccl"
theirs = dist.new_group()

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8]
OPERATIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
# One rounding per addition, of numbers around 1.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def numbers(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def bits_agree(tensor: torch.Tensor) -> bool:
    """Whether every rank has the very same bytes."""
    checksum = torch.tensor([zlib.crc32(tensor.view(torch.uint8).numpy().tobytes())])
    everyone = torch.empty(world.size, dtype=torch.int64)
    dist.all_gather_into_tensor(everyone, checksum, group=theirs)
    return everyone.unique().numel() == 1


def compare(case: int) -> None:
    choose = random.Random(case)
    dtype = choose.choice(DTYPES)
    op = getattr(dist.ReduceOp, choose.choice(OPERATIONS))
    count = int(2 ** choose.uniform(0, 21))
    root = choose.randrange(world.size)
    mine = numbers(count * world.size, dtype, case * 1000 + world.rank)

    def results(group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
        reduced, to_root, part, exchanged = mine.clone(), mine.clone(), mine[:count].clone(), torch.empty_like(mine)
        dist.all_reduce(reduced, op, group=group)
        dist.reduce(to_root, root, op, group=group)
        dist.reduce_scatter_tensor(part, mine, op, group=group)
        gathered = torch.empty_like(mine)
        dist.all_gather_into_tensor(gathered, part, group=group)
        dist.all_to_all_single(exchanged, mine, group=group)
        sent = mine.clone()
        dist.broadcast(sent, root, group=group)
        return {
            "all_reduce": reduced,
            "reduce": to_root,
            "reduce_scatter": part,
            "all_gather": gathered,
            "all_to_all": exchanged,
            "broadcast": sent,
        }

    first, again, other = results(ours), results(ours), results(theirs)
    tolerance = TOLERANCE.get(dtype, 0) * world.size
    for name, tensor in first.items():
        where = f"{name} of {count} {dtype}, {op}, root {root}"
        assert torch.equal(tensor, again[name]), f"{where}: two runs differ"
        assert torch.allclose(tensor, other[name], tolerance, tolerance), f"{where}: {tensor} and {other[name]}"
    for name in ("all_reduce", "all_gather", "broadcast"):
        assert bits_agree(first[name]), f"{name} of {count} {dtype}, {op}: ranks differ"


for number in range(int(sys.argv[1])):
    compare(number)
carried = extension.load().traffic()
assert set(carried) == {"shared_memory", "oneccl"}, carried
leave(world)
