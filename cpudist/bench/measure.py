"""Timing calls that all ranks make together."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from cpudist.bench.timing import Contender

# The contenders, as tables name them.
RAW, PIECES, CCL, GLOO = "raw oneCCL", "raw in 4 MB pieces", "ccl", "gloo"
MPI, DISPATCH, COPY = "mpi4py", "torch alone", "memory copy"


def both_groups() -> dict[str, dist.ProcessGroup]:
    """The job's own group, which is ccl, and one more of the same ranks on gloo."""
    ccl, gloo = dist.group.WORLD, dist.new_group(backend=GLOO)
    assert ccl is not None
    assert gloo is not None
    return {CCL: ccl, GLOO: gloo}


def timed(call: Callable[[], object]) -> Contender:
    """A contender that makes `call` again and again, without a pause."""

    def measure(calls: int) -> list[float]:
        seconds = []
        for _ in range(calls):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return measure


def together(contender: Contender, group: dist.ProcessGroup) -> Contender:
    """Let all ranks begin a turn at once, and give all of them each call's mean over the ranks.

    The mean, since one rank's own time flatters whatever lets that rank go early (the root of a broadcast),
    and the slowest rank's adds up the jitter of all. `group` carries this, outside of what is timed.
    """

    def measure(calls: int) -> list[float]:
        dist.barrier(group)
        seconds = torch.tensor(contender(calls), dtype=torch.float64)
        dist.all_reduce(seconds, group=group)
        return [float(sum_of_ranks) / group.size() for sum_of_ranks in seconds]

    return measure
