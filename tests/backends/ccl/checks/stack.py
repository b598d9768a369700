"""What stands on process groups gives the same result on ccl as one process: DDP, FSDP2, DTensor, checkpoints."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from program import leave
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cpudist

FOLDER = Path(sys.argv[1])
STEPS = 4


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))


def batches(size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size * 6, 12, generator=generator) for _ in range(STEPS)]


def train(net: torch.nn.Module, rank: int, size: int, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Global losses of a few steps on this rank's share of every batch."""
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for batch in batches(cpudist.init("ccl").size):
        loss = net(batch.chunk(size)[rank]).square().mean()
        loss.backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()
        total = loss.detach().clone()
        if size > 1:
            dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(float(total))
    return losses


def main() -> None:
    world = cpudist.init("ccl", timeout=60)
    assert dist.get_backend() == "ccl"
    alone = model()
    expected = train(alone, 0, 1)

    replicated = model()
    losses = train(cpudist.wrap(replicated), world.rank, world.size)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(replicated.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    replicated = model()
    zero = ZeroRedundancyOptimizer(replicated.parameters(), torch.optim.AdamW, lr=0.01)
    losses = train(cpudist.wrap(replicated), world.rank, world.size, zero)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)

    mesh = init_device_mesh("cpu", (world.size,))
    sharded = model()
    for layer in sharded:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    torch.testing.assert_close(train(sharded, world.rank, world.size), expected, rtol=1e-5, atol=1e-6)

    state = {"model": sharded.state_dict()}
    dcp.save(state, checkpoint_id=FOLDER)
    before = {name: tensor.full_tensor() for name, tensor in state["model"].items()}
    blank = {"model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()}}
    dcp.load(blank, checkpoint_id=FOLDER)
    for name, tensor in blank["model"].items():
        torch.testing.assert_close(tensor.full_tensor(), before[name])

    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(columns.full_tensor(), whole)
    torch.testing.assert_close((rows @ rows.T).full_tensor(), whole @ whole.T)
    torch.testing.assert_close(rows.sum(0).redistribute(mesh, [Replicate()]).to_local(), whole.sum(0))

    buffered = copy.deepcopy(alone)
    hooked = cpudist.wrap(buffered, static_graph=True, bucket_cap_mb=1)
    hooked.register_comm_hook(None, fp16_compress_hook)
    hooked(batches(world.size)[0].chunk(world.size)[world.rank]).sum().backward()

    leave(world)


if __name__ == "__main__":
    main()
