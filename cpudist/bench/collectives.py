"""Times of collectives: the job's process group, gloo, and beside an allreduce a copy of as much memory.

The groups are called through `torch.distributed`, as a script does. Buffers change between calls, as gradients do.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import (
    GLOO,
    Candidate,
    Timings,
    Turns,
    both_groups,
    in_turn,
    ratio,
    take_turns,
    timed,
    together,
)
from cpudist.console import size as size_cell
from cpudist.optimization import precision

if TYPE_CHECKING:
    from cpudist.world import World

_KB, _MB = 1 << 10, 1 << 20
_ALLREDUCE_SIZES = {
    torch.float32: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 96 * _MB),
    torch.bfloat16: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB),
}
_OTHER_SIZES = (1 * _MB, 16 * _MB)
_ROTATED_BYTES = 32 * _MB  # more than a core's own caches hold

COPY = "memory copy"
# Makes more candidates for an allreduce, by name, from a tensor's bytes and type, and the number of tensors to use.
Rivals = Callable[[int, torch.dtype, int], Mapping[str, Candidate]]

_ALLREDUCE = "allreduce"
# By name: the collective, and for each of its tensors whether it holds one rank's part of the elements.
_OPERATIONS: dict[str, tuple[Callable[..., object], tuple[bool, ...]]] = {
    _ALLREDUCE: (dist.all_reduce, (False,)),
    "all_gather_into_tensor": (dist.all_gather_into_tensor, (False, True)),
    "reduce_scatter_tensor": (dist.reduce_scatter_tensor, (True, False)),
    "broadcast": (partial(dist.broadcast, src=0), (False,)),
    "all_to_all_single": (dist.all_to_all_single, (False, False)),
}


@dataclass(frozen=True)
class Comparison:
    """Times of one operation at one size: the bytes of a rank's tensor, of the larger one where it has two.

    The first of the candidates is the job's process group.
    """

    operation: str
    size: int
    timings: dict[str, Timings]
    dtype: str = "float32"

    def ratio(self, one: str, other: str) -> Timings | None:
        """Return the ratio of the two times, `one` over `other`; None where either was not measured."""
        if one not in self.timings or other not in self.timings:
            return None
        return ratio(self.timings[one], self.timings[other])

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        ratios = {f"{a}/{b}": found for a, b in _pairs([self]) if (found := self.ratio(a, b))}
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "bytes": self.size,
            "seconds": {name: timings.as_dict() for name, timings in self.timings.items()},
            "ratios": {name: found.as_dict() for name, found in ratios.items()},
        }


@dataclass(frozen=True)
class CollectiveTimes:
    """All results of one run."""

    comparisons: tuple[Comparison, ...]

    def table(self) -> str:
        """Return two blocks of lines for each operation and type: times, and their ratios with the rounds' range."""
        kinds = itertools.groupby(self.comparisons, lambda one: (one.operation, one.dtype))
        groups = [(f"{operation}, {dtype}", list(group)) for (operation, dtype), group in kinds]
        blocks = [(f"{name}\n{_times(group)}", _ratios(group)) for name, group in groups]
        return "\n\n".join(block for pair in blocks for block in pair if block)

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars beside the allreduces: the other operations, at their largest size."""
        others = {one.operation: one for one in self.comparisons if one.operation != _ALLREDUCE}
        bars = {
            f"{one.operation} of {size_cell(one.size)}, {name}": one.timings[name]
            for one in others.values()
            for name in one.timings
        }
        return {"other operations, float32, in seconds": bars} if bars else {}

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [comparison.as_dict() for comparison in self.comparisons]


def run(
    world: World, say: Callable[[str], None], quick: bool = False, rivals: Rivals = lambda *_: {}
) -> CollectiveTimes:
    """Measure on every rank of a job, and return the same figures on all ranks."""
    # torch 2.13 has new names for two of the calls; torch 2.8 has only the ones used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    groups = both_groups(world.backend)
    devices = {world.backend: world.device, GLOO: torch.device("cpu")}
    comparisons = []
    for name, dtype, size in _plan(quick):
        say(f"{name} {precision.name(dtype)} {size_cell(size)}")
        buffers = max(2, min(32, _ROTATED_BYTES // size))
        count = size // dtype.itemsize // world.size * world.size
        calls = {
            device: in_turn([_call(name, count, world.size, dtype, device) for _ in range(buffers)])
            for device in {*devices.values()}
        }
        candidates = {
            backend: timed(_completed(partial(calls[devices[backend]], group), devices[backend]))
            for backend, group in groups.items()
        }
        if name == _ALLREDUCE and world.device.type == "cpu":
            candidates |= {COPY: _copy(count, dtype, buffers), **rivals(size, dtype, buffers)}
        times = take_turns(
            {key: together(candidate, groups[GLOO]) for key, candidate in candidates.items()}, _turns(size, quick)
        )
        comparisons.append(Comparison(name, size, times, precision.name(dtype)))
    return CollectiveTimes(tuple(comparisons))


def _call(
    name: str, count: int, ranks: int, dtype: torch.dtype, device: torch.device
) -> Callable[[dist.ProcessGroup], object]:
    """Return an operation on buffers of its own, for any group. The elements stay zero, however often summed."""
    collective, divided = _OPERATIONS[name]
    tensors = [torch.zeros(count // ranks if one else count, dtype=dtype, device=device) for one in divided]
    return lambda group: collective(*tensors, group=group)


def _copy(count: int, dtype: torch.dtype, buffers: int) -> Candidate:
    """Return a candidate that copies as many elements, on every rank within its own memory."""
    pairs = [(torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)) for _ in range(buffers)]
    return timed(in_turn(partial(target.copy_, source) for source, target in pairs))


def _completed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a function that makes `call` and waits until the device has finished it."""
    if device.type == "cpu":
        return call
    synchronize = job.require().backend.devices.synchronize

    def call_and_wait() -> None:
        call()
        synchronize()

    return call_and_wait


def _plan(quick: bool) -> list[tuple[str, torch.dtype, int]]:
    allreduces = [(_ALLREDUCE, dtype, size) for dtype, sizes in _ALLREDUCE_SIZES.items() for size in sizes]
    others = [(name, torch.float32, size) for name in list(_OPERATIONS)[1:] for size in _OTHER_SIZES]
    if quick:
        return [*allreduces[:2], *allreduces[6:7], *others[::2]]
    return [*allreduces, *others]


def _turns(size: int, quick: bool) -> Turns:
    """Return enough calls for a steady median: some tenths of a second per turn of the slowest candidate."""
    if quick:
        return Turns(rounds=2, calls=5, warm_up=1)
    if size <= 64 * _KB:
        return Turns(rounds=5, calls=200, warm_up=40)
    return Turns(rounds=5, calls=min(max(160 * _MB // size, 5), 60), warm_up=3)


def _pairs(comparisons: list[Comparison]) -> list[tuple[str, str]]:
    """Return the candidates whose times are divided: gloo by the job's process group, and that by all others."""
    own, *others = dict.fromkeys(name for one in comparisons for name in one.timings)
    return [(GLOO, own) if name == GLOO else (own, name) for name in others]


def _times(comparisons: list[Comparison]) -> str:
    names = list(dict.fromkeys(name for one in comparisons for name in one.timings))
    return _sizes(comparisons, names, lambda one: [time_cell(one.timings.get(name), spread=False) for name in names])


def _ratios(comparisons: list[Comparison]) -> str:
    pairs = _pairs(comparisons)
    if not pairs:
        return ""
    heads = [f"{a} / {b}" for a, b in pairs]
    return _sizes(comparisons, heads, lambda one: [ratio_cell(one.ratio(a, b)) for a, b in pairs])


def _sizes(comparisons: list[Comparison], heads: list[str], cells: Callable[[Comparison], list[str]]) -> str:
    return table(["size", *heads], [[size_cell(one.size), *cells(one)] for one in comparisons])
