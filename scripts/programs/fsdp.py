"""FSDP's three strategies, after DDP with the same batches. Their losses are to be equal up to rounding."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [module for _ in range(4) for module in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))


def losses(strategy: ShardingStrategy | None) -> list[float]:
    """Train a copy of the model for six steps."""
    wrapped: torch.nn.Module = copy.deepcopy(model)
    if strategy is None:
        wrapped = DistributedDataParallel(wrapped)
    else:
        wrapped = FullyShardedDataParallel(wrapped, sharding_strategy=strategy, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(6):
        loss = (wrapped(torch.randn(8, 64)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


expected = losses(None)
for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
    found = losses(strategy)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    print("\n".join(f"loss {loss:.6f}" for loss in found), flush=True)
dist.destroy_process_group()
