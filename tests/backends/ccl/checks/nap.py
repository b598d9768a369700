"""A future that is asked for while the engine's thread sleeps wakes it. It would sleep for an hour (conditions.py)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from program import leave

import cpudist
from cpudist import waiting

world = cpudist.init("ccl", timeout=60)
for number in range(50):
    tensor = torch.full((1 << 20,), float(world.rank))
    work = dist.all_reduce(tensor, async_op=True)
    torch.rand(200, 200) @ torch.rand(200, 200)  # meanwhile the thread falls asleep
    future = work.get_future()
    assert waiting.poll(future.done, 15), f"future {number} is not complete"
    assert tensor[-1] == sum(range(world.size))
leave(world)
