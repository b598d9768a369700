"""Each rank of a job spawns one child, which is a rank of a group of its own; mpi4py has been imported in both."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from mpi4py import MPI

import cpudist
from cpudist.errors import UserError


def child(_: int, rank: int, size: int, store: str) -> None:
    assert MPI.COMM_WORLD.size == 1, "a child has no part in its parent's MPI"
    with pytest.raises(UserError, match="a rank of the job has started this process"):
        cpudist.init("ccl")
    dist.init_process_group("ccl", init_method=f"file://{store}", rank=rank, world_size=size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == size * (size + 1) / 2
    print(f"child of {rank} has summed")
    dist.destroy_process_group()


if __name__ == "__main__":
    world = cpudist.init("ccl", timeout=60)
    torch.multiprocessing.spawn(child, (world.rank, world.size, sys.argv[1]))
    dist.barrier()
    cpudist.shutdown()
