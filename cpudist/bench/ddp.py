"""Times of a training step under DistributedDataParallel, on ccl and on gloo, or on another backend's device.

A step is forward, backward and optimizer of a BERT with 24 million parameters, on random tokens. Backends are compared
at the buckets that are best for each. The same step without communication is the limit of both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cpudist import job
from cpudist.bench import workload
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import (
    CCL,
    GLOO,
    Candidate,
    Ratio,
    Timings,
    Turns,
    beginning_with,
    both_groups,
    ratio,
    take_turns,
    timed,
    together,
)
from cpudist.optimization import precision

if TYPE_CHECKING:
    from cpudist.world import World


class Buckets(NamedTuple):
    """DDP's settings: the size of a bucket in megabytes, and whether gradients are views of it."""

    mb: int
    views: bool = False

    def __str__(self) -> str:
        return f"{self.mb} MB, views" if self.views else f"{self.mb} MB"


CHOICES = tuple(Buckets(mb, views) for views in (False, True) for mb in (1, 25, 100))
_DTYPES = (torch.float32, torch.bfloat16)
_ALONE = "no communication"

# Two steps of warm-up: DDP settles its buckets after its first step.
_FULL = Turns(rounds=5, calls=3, warm_up=2)
_QUICK = Turns(rounds=2, calls=1, warm_up=2)


@dataclass(frozen=True)
class StepTimes:
    """Times of a step in one type: without communication, and by backend and buckets."""

    dtype: str
    alone: Timings
    buckets: dict[str, dict[Buckets, Timings]]

    def best(self, backend: str) -> Buckets:
        """Return the buckets with which a step is fastest."""
        return min(self.buckets[backend], key=lambda buckets: self.buckets[backend][buckets].median)

    def ratios(self) -> dict[tuple[str, str], Ratio]:
        """Return gloo's time over ccl's, and each backend's over no communication, with the best buckets of each."""
        best = {_ALONE: self.alone, **{name: choices[self.best(name)] for name, choices in self.buckets.items()}}
        pairs = [(GLOO, CCL), *((name, _ALONE) for name in self.buckets)]
        return {(a, b): ratio(best[a], best[b]) for a, b in pairs if a in best and b in best}

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "dtype": self.dtype,
            "seconds": {
                _ALONE: self.alone.as_dict(),
                **{
                    backend: {str(buckets): timings.as_dict() for buckets, timings in choices.items()}
                    for backend, choices in self.buckets.items()
                },
            },
            "best": {backend: str(self.best(backend)) for backend in self.buckets},
            "ratios": {f"{a}/{b}": found.as_dict() for (a, b), found in self.ratios().items()},
        }


@dataclass(frozen=True)
class DdpTimes:
    """All that one run measured."""

    steps: tuple[StepTimes, ...]

    def table(self) -> str:
        """Return one block of lines for each type."""
        return "\n\n".join(_block(one) for one in self.steps)

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [one.as_dict() for one in self.steps]

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars of each type."""
        return {
            f"training step, {one.dtype}, in seconds": {
                _ALONE: one.alone,
                **{
                    f"{backend}, {buckets}": timings
                    for backend, choices in one.buckets.items()
                    for buckets, timings in choices.items()
                },
            }
            for one in self.steps
        }


def run(world: World, say: Callable[[str], None], quick: bool = False) -> DdpTimes:
    """Measure on every rank of a job, and return the same figures on all ranks.

    Args:
        world: the job's ranks.
        say: is called with the progress, in words.
        quick: measure little, as a smoke test.
    """
    groups, choices = both_groups(world.backend), CHOICES[::-3] if quick else CHOICES
    own, gloo = groups[world.backend], groups[GLOO]
    if world.device.type != "cpu":  # gloo has no tensors of the device, and each kind of buckets is compiled anew
        groups, choices = {world.backend: own}, (Buckets(job.require().backend.ddp_options()["bucket_cap_mb"], True),)
    model = _Training(world)
    say(workload.describe(model.model))
    steps = []
    for dtype in _DTYPES:
        candidates = {(_ALONE, choices[0]): model.candidate(dtype, own, choices[0], communicate=False)}
        for buckets in choices:
            for backend, group in groups.items():
                candidates[backend, buckets] = model.candidate(dtype, group, buckets)
        name = precision.name(dtype)
        timings = take_turns(
            {key: together(candidate, gloo) for key, candidate in candidates.items()},
            _QUICK if quick else _FULL,
            beginning_with(name, say),
        )
        by_backend = {backend: {buckets: timings[backend, buckets] for buckets in choices} for backend in groups}
        steps.append(StepTimes(name, timings[_ALONE, choices[0]], by_backend))
    return DdpTimes(tuple(steps))


class _Training:
    """A model, its optimizer and this rank's batch. Each turn wraps the model in a DDP of its own."""

    def __init__(self, world: World) -> None:
        self.model = workload.bert(world.device)
        fused = "fused" in job.require().backend.optimizations
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=fused)
        self._tokens = workload.tokens(world.rank).to(world.device)

    def candidate(
        self, dtype: torch.dtype, group: dist.ProcessGroup, buckets: Buckets, communicate: bool = True
    ) -> Candidate:
        """Return a candidate that trains in `dtype`, with gradients reduced by `group` in these buckets."""

        def measure(calls: int) -> list[float]:
            gc.collect()  # frees the DDP of the last turn, whose hooks on the model form reference cycles
            model = DistributedDataParallel(
                self.model, process_group=group, bucket_cap_mb=buckets.mb, gradient_as_bucket_view=buckets.views
            )
            with nullcontext() if communicate else model.no_sync():
                return timed(partial(workload.train_on, self._tokens, model, self._optimizer, dtype))(calls)

        return measure


def _block(one: StepTimes) -> str:
    backends = list(one.buckets)
    rows = [
        [str(buckets) + "".join(f"  best of {b}" for b in backends if one.best(b) == buckets)]
        + [time_cell(one.buckets[backend][buckets]) for backend in backends]
        for buckets in one.buckets[backends[0]]
    ]
    lines = [f"training step, {one.dtype}", table(["buckets", *backends], rows), f"{_ALONE}: {time_cell(one.alone)}"]
    lines += [f"{a} / {b}, each at its best: {ratio_cell(found)}" for (a, b), found in one.ratios().items()]
    return "\n".join(lines)
