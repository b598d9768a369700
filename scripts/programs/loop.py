"""The loop that the smaller programs share: DDP and AdamW, each rank with batches of its own."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model: torch.nn.Module, batch: Callable[[], Any], loss_of: Callable[[Any, Any], torch.Tensor]) -> None:
    """Train for six steps and print each loss."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(6):
        loss = loss_of(model, batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
