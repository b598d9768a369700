"""What every collective gives for tensors of XLA devices is what it gives for tensors of the CPU: run by two ranks.

With the word gloo, one of them says that it cannot use ccl.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import cpudist
from cpudist.backends.ccl.backend import CclBackend

if "gloo" in sys.argv:
    CclBackend.unavailable = lambda self: None if os.environ.get("PMI_RANK") == "0" else "no compiler"
world = cpudist.init("xla", timeout=30)
DEVICE = world.device


def both(call):
    """The results of `call(device)` on the CPU and on the XLA device, as lists of tensors."""
    cpu, xla = call(torch.device("cpu")), call(DEVICE)
    assert all(tensor.device.type == "xla" for tensor in xla), call
    for expected, found in zip(cpu, xla, strict=True):
        assert torch.equal(expected, found.cpu()), (call.__name__, expected, found)


def own(device, *shape):
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float32).reshape(shape) + 100 * world.rank).to(device)


def all_reduce(device):
    tensors = [own(device, 3, 2), own(device, 5), own(device)]
    for tensor, operation in zip(tensors, (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG), strict=True):
        if operation != dist.ReduceOp.AVG or dist.get_backend().endswith("ccl"):  # gloo has no mean
            dist.all_reduce(tensor, operation)
    return tensors


def broadcast(device):
    tensor = own(device, 4)
    dist.broadcast(tensor, src=1)
    return [tensor]


def reduce(device):
    tensor = own(device, 4)
    dist.reduce(tensor, dst=0)
    return [tensor] if world.rank == 0 else [own(device, 4)]


def all_gather(device):
    pieces = [torch.zeros(2, 3, device=device) for _ in range(world.size)]
    dist.all_gather(pieces, own(device, 2, 3))
    flat = torch.zeros(2 * world.size, 3, device=device)
    dist.all_gather_into_tensor(flat, own(device, 2, 3))
    return [*pieces, flat]


def gather(device):
    pieces = [torch.zeros(3, device=device) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(own(device, 3), pieces, dst=0)
    return pieces or [own(device, 1)]


def scatter(device):
    tensor = torch.zeros(3, device=device)
    rows = [own(device, 3) + rank for rank in range(world.size)] if world.rank == 1 else None
    dist.scatter(tensor, rows, src=1)
    return [tensor]


def all_to_all(device):
    tensor = torch.zeros(4, device=device)
    dist.all_to_all_single(tensor, own(device, 4))
    return [tensor]


def send(device):
    tensor = own(device, 3)
    if world.rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return [tensor]


def in_a_subgroup(device):
    group = dist.new_group([1])
    tensor = own(device, 3)
    if world.rank == 1:
        dist.all_reduce(tensor, group=group)
    return [tensor]


for collective in (all_reduce, broadcast, reduce, all_gather, gather, scatter, all_to_all, send, in_a_subgroup):
    both(collective)
objects = [None] * world.size
dist.all_gather_object(objects, {"rank": world.rank})
assert objects == [{"rank": 0}, {"rank": 1}]
dist.barrier()
print(f"rank {world.rank}: all collectives agree over {dist.get_backend()}")
assert "torch_xla" in sys.modules
cpudist.shutdown()
