"""How long a training step takes under DistributedDataParallel, on ccl and on gloo.

A step is forward, backward and optimizer of a BERT with 24 million parameters, on random tokens. Each backend
is judged at its best buckets; the same step without communication is what neither can beat.
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

from cpudist.bench import table, workload
from cpudist.bench.measure import CCL, GLOO, both_groups, timed, together
from cpudist.bench.timing import Contender, Ratio, Timings, Turns, ratio, take_turns

if TYPE_CHECKING:
    from cpudist.world import World

BACKENDS = (CCL, GLOO)


class Buckets(NamedTuple):
    """DDP's settings: how large buckets are, and whether gradients are views of them (`gradient_as_bucket_view`)."""

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
    """A step in one dtype: without communication, and by backend and buckets."""

    dtype: str
    alone: Timings
    buckets: dict[str, dict[Buckets, Timings]]

    def best(self, backend: str) -> Buckets:
        """The buckets with which a step is fastest."""
        return min(self.buckets[backend], key=lambda buckets: self.buckets[backend][buckets].median)

    def ratio(self) -> Ratio:
        """gloo / ccl, each at its best."""
        ccl, gloo = (self.buckets[backend][self.best(backend)] for backend in BACKENDS)
        return ratio(gloo, ccl)

    def as_dict(self) -> dict[str, Any]:
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
            "ratios": {"gloo/ccl": self.ratio().as_dict()},
        }


@dataclass(frozen=True)
class DdpTimes:
    """Everything that one run measured."""

    steps: tuple[StepTimes, ...]

    def table(self) -> str:
        """One block of lines per dtype."""
        return "\n\n".join(_block(one) for one in self.steps)

    def as_list(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self.steps]


def run(world: World, say: Callable[[str], None], quick: bool = False) -> DdpTimes:
    """Measure on every rank of `world`; all ranks return the same figures. `say` is told how far it is."""
    groups = both_groups()
    model = Training(world.rank)
    say(workload.describe(model.model))
    return DdpTimes(tuple(_measure(model, dtype, groups, say, quick) for dtype in _DTYPES))


def _measure(
    model: Training,
    dtype: torch.dtype,
    groups: dict[str, dist.ProcessGroup],
    say: Callable[[str], None],
    quick: bool,
) -> StepTimes:
    choices = CHOICES[::-3] if quick else CHOICES
    contenders = {(_ALONE, CHOICES[0]): model.contender(dtype, groups[CCL], CHOICES[0], communicate=False)}
    for buckets in choices:
        for backend, group in groups.items():
            contenders[backend, buckets] = model.contender(dtype, group, buckets)
    name = str(dtype).removeprefix("torch.")
    turns = _QUICK if quick else _FULL
    contenders = {key: together(contender, groups[GLOO]) for key, contender in contenders.items()}
    timings = take_turns(contenders, turns, lambda progress: say(f"{name}, {progress}"))
    by_backend = {backend: {buckets: timings[backend, buckets] for buckets in choices} for backend in groups}
    return StepTimes(name, timings[_ALONE, CHOICES[0]], by_backend)


class Training:
    """One model, its optimizer and this rank's batch. Each turn wraps it anew: one DDP is alive at a time."""

    def __init__(self, rank: int, shape: workload.Shape = workload.SMALL) -> None:
        self.model = workload.bert()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self._tokens = workload.tokens(rank, shape)

    def contender(
        self, dtype: torch.dtype, group: dist.ProcessGroup, buckets: Buckets, communicate: bool = True
    ) -> Contender:
        """Training steps in `dtype`, with gradients reduced by `group` in these buckets."""

        def measure(calls: int) -> list[float]:
            gc.collect()  # the last turn's DDP, with its hooks on the model: it is part of reference cycles
            model = DistributedDataParallel(
                self.model, process_group=group, bucket_cap_mb=buckets.mb, gradient_as_bucket_view=buckets.views
            )
            with nullcontext() if communicate else model.no_sync():
                return timed(partial(self._step, model, dtype))(calls)

        return measure

    def _step(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = model(input_ids=self._tokens, labels=self._tokens).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def _block(one: StepTimes) -> str:
    rows = [
        [str(buckets) + "".join(f"  best of {b}" for b in BACKENDS if one.best(b) == buckets)]
        + [table.time_cell(one.buckets[backend][buckets]) for backend in BACKENDS]
        for buckets in one.buckets[BACKENDS[0]]
    ]
    lines = table.render(["buckets", *BACKENDS], rows)
    return (
        f"training step, {one.dtype}\n{lines}\n{_ALONE}: {table.time_cell(one.alone)}\n"
        f"gloo / ccl, each at its best: {table.ratio_cell(one.ratio())}"
    )
