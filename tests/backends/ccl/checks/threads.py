"""Large calls give the same bits whatever number of channels a group has, and of threads that carry them."""

import os
import threading
import time
from itertools import zip_longest

import torch
import torch.distributed as dist
from programs import leave

import cpudist
from cpudist.backends.ccl import extension
from cpudist.backends.ccl.ccl_backend import CclBackend

world = cpudist.init("ccl", timeout=60)
COUNT = 1_300_007  # elements: several parts of several pieces, and no multiple of anything
PEERS = range(world.size)
SLOW = "CPUDIST_TEST_ROOMY" in os.environ  # under a sanitizer threads are too slow to complete a part in their time


def values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 100 + world.rank)
    result = torch.randn(COUNT, generator=generator)
    result[::7] *= 1e-39  # subnormal in float32
    return result.to(dtype)


def results(group: dist.ProcessGroup | None, own: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what this rank receives from each kind of call, given its input, and one for each peer."""
    total, mean, spread = own.clone(), own.clone(), own.clone()
    dist.all_reduce(total, group=group)
    dist.all_reduce(mean, dist.ReduceOp.AVG, group)
    dist.broadcast(spread, world.size - 1, group)
    gathered = [torch.empty_like(own) for _ in PEERS]
    dist.all_gather(gathered, own, group)
    share = torch.empty_like(own)
    dist.reduce_scatter(share, parts, group=group)
    return [total, mean, spread, share, *gathered]


def all_have_carried(threads: int, before: list[int], group: dist.ProcessGroup | None) -> bool:
    """Return whether each thread of each rank carries bytes; on a busy machine some calls do without the others."""
    large, deadline = values(torch.float32, 0), time.monotonic() + 30
    while True:
        now = module.bytes_of_threads()
        carried = len(now) >= threads and all(
            more > less for more, less in zip_longest(now[:threads], before[:threads], fillvalue=0)
        )
        lacks = torch.tensor([not carried, time.monotonic() < deadline])
        dist.all_reduce(lacks, dist.ReduceOp.MAX)
        if not lacks.all():
            return not lacks[0]
        dist.all_reduce(large, group=group)


module = extension.load()
dtypes = torch.float32, torch.bfloat16
inputs = {dtype: (values(dtype, 0), [values(dtype, 1 + peer) for peer in PEERS]) for dtype in dtypes}
torch.set_num_threads(1)
expected = {dtype: results(None, *inputs[dtype]) for dtype in dtypes}
for channels in (2, 4):
    torch.set_num_threads(channels)
    module.lend_computing_threads(channels)  # as if this rank had so many cores
    group = dist.new_group()
    for threads in (channels, 2, 1):
        torch.set_flush_denormal(True)  # new threads of the pool have it, too
        torch.set_num_threads(threads)
        before = module.bytes_of_threads()
        for dtype in dtypes:
            for actual, wanted in zip(results(group, *inputs[dtype]), expected[dtype], strict=True):
                assert torch.equal(actual.view(torch.uint8), wanted.view(torch.uint8)), (channels, threads)
        torch.set_flush_denormal(False)
        if threads == 1:
            assert module.bytes_of_threads() == before, (before, module.bytes_of_threads())
            continue
        assert SLOW or all_have_carried(threads, before, group), (before, module.bytes_of_threads())
    # A thread that does not compute, or a rank with fewer cores than threads, carries its calls alone.
    before = module.bytes_of_threads()
    other = threading.Thread(target=dist.all_reduce, args=(values(torch.float32, 0),), kwargs={"group": group})
    other.start()
    other.join()
    torch.set_num_threads(channels + 1)
    dist.all_reduce(values(torch.float32, 0), group=group)
    assert module.bytes_of_threads() == before
    dist.destroy_process_group(group)
torch.set_num_threads(1)
leave(f", {CclBackend().details()['computing_threads_carried']}")
