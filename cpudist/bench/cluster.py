"""Measure a cluster on all ranks of a running job; every rank calls `measure`."""

import itertools
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from cpudist import api
from cpudist.bench.cluster_figures import ClusterFigures, HostFigures, LinkFigures
from cpudist.bench.judgement import is_starved, slow_and_late, slow_hosts
from cpudist.bench.timing import timed, together
from cpudist.checkpoints import folders
from cpudist.console import number_of, say
from cpudist.job import Job
from cpudist.topology.machine import allowed_cpus, clock_of, cpu_quota
from cpudist.version import __version__

_MATRIX = 1024  # rows and columns
_COPIED_BYTES = 1 << 27  # more than caches hold
_RATE_SECONDS = 1.0
_ALLREDUCED = (1 << 10, 1 << 20, 25 << 20)  # bytes
_CALLS, _FEWEST_CALLS = 5, 1  # Calls of each allreduce; fewer on a slow network.
_AGAIN = 4  # Most repetitions while hosts or links look slow: other programs may have disturbed the measurement.
_STEPS, _SAMPLES = 5, 24
_SMALL_BYTES, _ROUND_TRIPS = 8, 20
_FIRST_BYTES, _MOST_BYTES = 1 << 18, 1 << 26
_MESSAGE_SECONDS = 0.15  # approximate duration of one large message
_LARGE_MESSAGES = 3
_TO, _FROM = 0, 1  # the direction of a large message, seen from the rank that takes the time


def measure(job: Job) -> ClusterFigures:
    """Measure all hosts and links, and return the same figures on every rank; rank 0 reports progress."""
    world = job.world

    def progress(line: str) -> None:
        if world.rank == 0:
            say(line, program="cpudist test")

    progress(f"computing and memory of {number_of(len(world.hosts), 'host')}")
    hosts: list[HostFigures] = _from_each_host(job, _measure_host(job))
    for _ in range(_AGAIN):
        if any(slow_hosts([host for host in hosts if not is_starved(host)] or hosts)):
            hosts = list(map(HostFigures.best, hosts, _from_each_host(job, _measure_host(job))))
    if len(hosts) > 1:
        progress(f"links between {len(hosts)} hosts")
    links = _measure_links(job, hosts)
    progress("collectives, and a small training")
    transport = job.backend.transport()
    return ClusterFigures(
        hosts,
        links,
        {size: _allreduce(size) for size in _ALLREDUCED},
        (_train(world.rank, world.size), _train(0, 1)),
        f"{world.backend} over {transport}" if transport else world.backend,
    )


def _measure_links(job: Job, hosts: Sequence[HostFigures]) -> list[LinkFigures]:
    ranks = _from_each_host(job, job.world.rank)
    pairs, links = pairs_in_rounds(len(ranks)), dict[tuple[int, int], LinkFigures]()
    for _ in range(1 + _AGAIN if len(ranks) > 1 else 0):
        own = _links_from(job.world.node_rank, ranks, pairs) if job.world.local_rank == 0 else []
        for link in itertools.chain(*_from_each_host(job, own)):
            ends = link.source, link.target
            links[ends] = max(links.get(ends, link), link, key=lambda one: one.bandwidth / one.latency)
        slow, late, _ = slow_and_late([*links.values()], hosts)
        pairs = [pair for pair in pairs if any(set(pair) == {link.source, link.target} for link in slow + late)]
    return list(links.values())


def _measure_host(job: Job) -> HostFigures | None:
    """Return this host's figures on its first rank, None on its other ranks; these wait, since they share its cores."""
    world = job.world
    with folders.probe(os.getcwd()) if world.rank == 0 else nullcontext("") as probe:
        names: list[Any] = [probe]
        dist.broadcast_object_list(names, 0)
        found = _figures(world.hosts[world.node_rank], names[0]) if world.local_rank == 0 else None
        dist.barrier()  # the file stays until all hosts have looked for it
    return found


def _figures(name: str, probe: str) -> HostFigures:
    """Measure this host. `probe` is a file in rank 0's working folder; empty if it cannot be written."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)  # before this process adds to it
    flops = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.randn(_MATRIX, _MATRIX).to(dtype)
        flops[str(dtype).removeprefix("torch.")] = 2 * _MATRIX**3 * _rate(partial(torch.mm, matrix, matrix))
    source, target = (torch.ones(_COPIED_BYTES, dtype=torch.uint8) for _ in range(2))
    return HostFigures(
        name,
        {"python": platform.python_version(), "torch": torch.__version__, "cpudist": __version__},
        cores=min(len(allowed_cpus()), torch.get_num_threads()),
        flops=flops,
        copied=2 * _COPIED_BYTES * _rate(partial(target.copy_, source)),
        quota=cpu_quota(),
        load=load,
        clock=clock_of(min(allowed_cpus())),
        memory=psutil.virtual_memory().available,
        shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        shares_folder=not probe or os.path.exists(probe),
    )


def _rate(call: Callable[[], object]) -> float:
    """Return the mean number of calls per second; the shortest call would hide a CPU quota."""
    call()
    calls, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < _RATE_SECONDS:
        call()
        calls += 1
    return calls / seconds


def _from_each_host(job: Job, value: Any) -> list[Any]:
    """Return the values of the first rank of each host, in the order of hosts."""
    everyone: list[Any] = [None] * job.world.size
    dist.all_gather_object(everyone, (job.world.node_rank, job.world.local_rank, value))
    return [value for _, local_rank, value in sorted(everyone, key=lambda one: one[:2]) if local_rank == 0]


def _allreduce(size: int) -> float:
    """Return the median seconds of an allreduce of `size` bytes."""
    call = timed(partial(dist.all_reduce, torch.zeros(size // 4)))
    return statistics.median(together(call, fewest=_FEWEST_CALLS)(_CALLS))


def _train(rank: int, size: int) -> float:
    """Train a small model on this rank's part of the samples; return the final loss over all samples."""
    generator = torch.Generator().manual_seed(0)
    samples, targets = (torch.randn(_SAMPLES * 4, 8, generator=generator) for _ in range(2))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    trained = api.wrap(model) if size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        own = slice(rank, None, size)
        error = (trained(samples[own]) - targets[own]).square().sum()
        (error * size / samples.shape[0]).backward()  # gradients are averaged over ranks
        optimizer.step()
    return float((model(samples) - targets).square().mean().detach())


def pairs_in_rounds(hosts: int) -> list[tuple[int, int]]:
    """Return all pairs of hosts in rounds. A round has each host in at most one pair (the circle method)."""
    circle: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found += [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def _links_from(own: int, ranks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[LinkFigures]:
    """Return both directions of the links from host `own` to hosts of higher numbers.

    `ranks` has the first rank of each host; these ranks call this. `pairs` are pairs of hosts, in order of rounds.
    """
    found = []
    for low, high in pairs:
        if own == low:
            found += _ask(low, high, ranks[high])
        elif own == high:
            _answer(ranks[low])
    return found


def _ask(own: int, other: int, rank: int) -> list[LinkFigures]:
    """Measure the link to a rank that calls `_answer`. All times are taken here."""
    latency = min(_timed(_SMALL_BYTES, rank, _TO) for _ in range(_ROUND_TRIPS)) / 2
    links = []
    for way, ends in ((_TO, (own, other)), (_FROM, (other, own))):
        size = _FIRST_BYTES
        while min(_timed(size, rank, way) for _ in range(2)) < _MESSAGE_SECONDS / 4 and size < _MOST_BYTES:
            size *= 4
        best = min(_timed(size, rank, way) for _ in range(1 + _LARGE_MESSAGES))
        # Subtract at most half of the time, because a busy host answers small messages late.
        links.append(LinkFigures(*ends, latency, size / max(best - 2 * latency, best / 2)))
    dist.send(torch.tensor([0, _TO]), rank)
    return links


def _timed(size: int, rank: int, way: int) -> float:
    """Return the seconds of a message of `size` bytes together with a small one in the other direction."""
    message, small = torch.zeros(size, dtype=torch.uint8), torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    begin = time.perf_counter()
    dist.send(torch.tensor([size, way]), rank)
    if way == _TO:
        dist.send(message, rank)
        dist.recv(small, rank)
    else:
        dist.recv(message, rank)
    return time.perf_counter() - begin


def _answer(rank: int) -> None:
    """Take part in the measurement of another rank, until it sends a size of 0."""
    small = torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    asked = torch.zeros(2, dtype=torch.int64)
    while True:
        dist.recv(asked, rank)
        size, way = asked.tolist()
        if size == 0:
            return
        message = torch.zeros(size, dtype=torch.uint8)
        if way == _TO:
            dist.recv(message, rank)
            dist.send(small, rank)
        else:
            dist.send(message, rank)
