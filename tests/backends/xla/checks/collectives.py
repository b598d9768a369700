"""Every collective gives the same results for tensors of XLA devices as for those of the CPU: run by two ranks.

torch_xla's own collectives that docs/xla.md lists as refused are refused. With the word gloo, one rank says that it
cannot use ccl.
"""

import os
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch_xla.core import functions, xla_model
from torch_xla.core.xla_model import all_reduce as reduce_imported_early
from torch_xla.runtime import world_size as size_imported_early

import cpudist
from cpudist.backends.ccl.ccl_backend import CclBackend
from cpudist.errors import UserError

if "gloo" in sys.argv:
    CclBackend.unavailable = lambda self: None if os.environ.get("PMI_RANK") == "0" else "no compiler"
world = cpudist.init("xla", timeout=120)
DEVICE = world.device


def own(device, *shape):
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float32).reshape(shape) + 100 * world.rank).to(device)


def results(device):
    """What this rank has after a call of each collective with tensors of `device`."""
    zeros = partial(torch.zeros, device=device)
    reduced = [own(device, 3, 2), own(device, 5), own(device)]
    dist.all_reduce(reduced[0])
    dist.all_reduce(reduced[1], dist.ReduceOp.MAX)
    if dist.get_backend().endswith("ccl"):  # gloo has no mean
        dist.all_reduce(reduced[2], dist.ReduceOp.AVG)
    of_rank_1 = own(device, 4)
    dist.broadcast(of_rank_1, src=1)
    at_rank_0 = own(device, 4)
    dist.reduce(at_rank_0, dst=0)
    pieces, flat = [zeros(2, 3) for _ in range(2)], zeros(4, 3)
    dist.all_gather(pieces, own(device, 2, 3))
    dist.all_gather_into_tensor(flat, own(device, 2, 3))
    gathered = [zeros(3) for _ in range(2)] if world.rank == 0 else []
    dist.gather(own(device, 3), gathered or None, dst=0)
    scattered = zeros(3)
    dist.scatter(scattered, [own(device, 3) + rank for rank in range(2)] if world.rank == 1 else None, src=1)
    exchanged = zeros(4)
    dist.all_to_all_single(exchanged, own(device, 4))
    message = own(device, 3)
    dist.send(message, 1) if world.rank == 0 else dist.recv(message, 0)
    alone, group = own(device, 3), dist.new_group([1])
    if world.rank == 1:
        dist.all_reduce(alone, group=group)
    sums = [at_rank_0] if world.rank == 0 else []
    return [*reduced, of_rank_1, *sums, *pieces, flat, *gathered, scattered, exchanged, message, alone]


for expected, found in zip(results(torch.device("cpu")), results(DEVICE), strict=True):
    assert found.device.type == "xla"
    assert torch.equal(expected, found.cpu()), (expected, found)
value = own(DEVICE, 4)
total, both_ranks = 2 * own("cpu", 4) + 100 * (1 - 2 * world.rank), [torch.arange(4.0), torch.arange(4.0) + 100]
assert size_imported_early() == 2
assert torch.equal(reduce_imported_early("sum", value).cpu(), total)
assert torch.equal(functions.all_reduce("sum", value).cpu(), total)
for gathered in (xla_model.all_gather(value), *xla_model.all_gather([value, value], pin_layout=False)):
    assert torch.equal(gathered.cpu(), torch.cat(both_ranks))
assert torch.equal(functions.all_gather(value).cpu(), torch.cat(both_ranks))
group, halves = dist.group.WORLD, [2, 2]
for call in (
    # Those that docs/xla.md lists, and torch's functional collectives.
    lambda: xla_model.all_gather(value, groups=[[0], [1]]),
    lambda: xla_model.all_to_all(value, 0, 0, 2),
    lambda: xla_model.collective_permute(value, [(0, 1)]),
    lambda: xla_model.recv(value, 1),
    lambda: xla_model.reduce_scatter("sum", value, 1.0, 0, 2),
    lambda: xla_model.reduce_scatter_bucketized("sum", [value], 1.0, 0, 2),
    lambda: xla_model.send(value, 1),
    lambda: functional.all_gather_tensor(value, 0, group),
    lambda: functional.all_reduce(value, "sum", group),
    lambda: functional.all_reduce_coalesced([value], "sum", group),
    lambda: functional.all_to_all_single(value, halves, halves, group),
    lambda: functional.broadcast(value, 0, group),
    lambda: functional.reduce_scatter_tensor(value, "sum", 0, group),
):
    with pytest.raises(UserError, match="CPU processes"):
        call()
wrapped = cpudist.wrap(torch.nn.BatchNorm1d(4).to(DEVICE), compress="bf16")
assert isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
for mode in (True, False):
    wrapped.train(mode)(own(DEVICE, 2, 4))  # which begins with rank 0's buffers
objects = [None] * world.size
dist.all_gather_object(objects, wrapped.module.running_mean.tolist())
assert objects[0] == objects[1] == pytest.approx([0.2, 0.3, 0.4, 0.5])
dist.barrier()
print(f"rank {world.rank}: all collectives agree over {dist.get_backend()}")
cpudist.shutdown()
