"""Starts a job on PyTorch/XLA as a notebook's cell does: `on_xla.py PROCESSES`; prints what rank 0 returns."""

from __future__ import annotations

import sys

import cpudist


def work() -> tuple[int, int, str, float]:
    world = cpudist.init()
    import torch
    import torch_xla.runtime

    total = torch.ones(3, device=world.device) * (world.rank + 1)
    if world.size > 1:
        torch.distributed.all_reduce(total)
    return world.size, torch_xla.runtime.addressable_device_count(), str(total.device), total.sum().item()


if __name__ == "__main__":
    print(cpudist.notebook_launcher(work, num_processes=int(sys.argv[1]), backend="xla"))
