"""How long collectives take: the ccl process group, gloo, and for an allreduce what else there is.

The groups are called through `torch.distributed`, as a script would. Buffers change between calls, as gradients do: a
buffer that is used again and again stays in the caches, and figures then flatter whoever copies the least.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist.bench import contenders, table
from cpudist.bench.busy import busy
from cpudist.bench.measure import CCL, COPY, DISPATCH, GLOO, MPI, PIECES, RAW, both_groups, timed, together
from cpudist.bench.timing import Ratio, Timings, Turns, ratio, take_turns
from cpudist.machine.cpus import allowed_cpus

if TYPE_CHECKING:
    from cpudist.world import World

_KB, _MB = 1 << 10, 1 << 20
_ALLREDUCE_SIZES = {
    torch.float32: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 96 * _MB),
    torch.bfloat16: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB),
}
_OTHER_SIZES = (1 * _MB, 16 * _MB)
_BUSY_SIZES = (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB)
_ROTATED_BYTES = 32 * _MB  # more than a core's own caches hold

_CONTENDERS = (RAW, PIECES, CCL, GLOO, MPI, COPY, DISPATCH)
_RATIOS = ((CCL, RAW), (GLOO, CCL), (CCL, MPI), (CCL, COPY), (CCL, DISPATCH))

# Allocates the buffers for so many elements on so many ranks; returns the call, for any group.
# The elements are zero: they stay zero however often they are summed.
Call = Callable[[dist.ProcessGroup], object]
Operation = Callable[[int, int, torch.dtype], Call]
Measurement = tuple[str, Operation, torch.dtype, int]


def _allreduce(count: int, size: int, dtype: torch.dtype) -> Call:
    data = torch.zeros(count, dtype=dtype)
    return lambda group: dist.all_reduce(data, group=group)


def _all_gather(count: int, size: int, dtype: torch.dtype) -> Call:
    part, whole = torch.zeros(count // size, dtype=dtype), torch.zeros(count, dtype=dtype)
    return lambda group: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(count: int, size: int, dtype: torch.dtype) -> Call:
    part, whole = torch.zeros(count // size, dtype=dtype), torch.zeros(count, dtype=dtype)
    return lambda group: dist.reduce_scatter_tensor(part, whole, group=group)


def _broadcast(count: int, size: int, dtype: torch.dtype) -> Call:
    data = torch.zeros(count, dtype=dtype)
    return lambda group: dist.broadcast(data, src=0, group=group)


def _all_to_all(count: int, size: int, dtype: torch.dtype) -> Call:
    received, sent = torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)
    return lambda group: dist.all_to_all_single(received, sent, group=group)


_OTHERS: dict[str, Operation] = {
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all_single": _all_to_all,
}


@dataclass(frozen=True)
class Comparison:
    """One operation at one size: the bytes of a rank's tensor, of the larger one where it has two."""

    operation: str
    size: int
    timings: dict[str, Timings]
    dtype: str = "float32"

    def ratio(self, one: str, other: str) -> Ratio | None:
        """`one` over `other`, oneCCL at its best; None where one of the two was not measured."""
        if RAW in (one, other) and PIECES in self.timings:
            best = min(RAW, PIECES, key=lambda name: self.timings[name].median)
            one, other = (best if name == RAW else name for name in (one, other))
        if one not in self.timings or other not in self.timings:
            return None
        return ratio(self.timings[one], self.timings[other])

    def as_dict(self) -> dict[str, Any]:
        ratios = {f"{a}/{b}": found for a, b in _RATIOS if (found := self.ratio(a, b))}
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "bytes": self.size,
            "seconds": {name: timings.as_dict() for name, timings in self.timings.items()},
            "ratios": {name: found.as_dict() for name, found in ratios.items()},
        }


@dataclass(frozen=True)
class CollectiveTimes:
    """Everything that one run measured."""

    comparisons: tuple[Comparison, ...]
    beside_others: bool = False

    def table(self) -> str:
        """Two blocks of lines per operation and type: times, and their ratios."""
        return "\n\n".join(
            f"{operation}, {dtype}\n{_times(group)}\n\n{_ratios(group)}"
            for (operation, dtype), group in _by_operation(self.comparisons)
        )

    def as_list(self) -> list[dict[str, Any]]:
        return [{**comparison.as_dict(), "beside_other_work": self.beside_others} for comparison in self.comparisons]


def run(world: World, say: Callable[[str], None], quick: bool = False, beside_others: bool = False) -> CollectiveTimes:
    """Measure on every rank of `world`; all ranks return the same figures. `say` is told how far it is.

    With `beside_others` a process computes on each core of the ranks meanwhile, and a round counts by its mean.
    """
    # torch 2.13 has new names for two of the calls; torch 2.8 knows only the ones used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    groups = both_groups()
    comparisons = []
    with busy(_cpus_of_node(world, groups[GLOO])) if beside_others else nullcontext():
        for name, operation, dtype, size in _plan(quick, beside_others):
            say(f"{name} {_name(dtype)} {table.size_cell(size)}")
            buffers = max(2, min(32, _ROTATED_BYTES // size))
            call = _in_turn([operation(_count(size, dtype, world), world.size, dtype) for _ in range(buffers)])
            others = contenders.of_allreduce(world, size, dtype, buffers) if operation is _allreduce else {}
            all_of_them = others | {backend: timed(partial(call, group)) for backend, group in groups.items()}
            times = take_turns(
                {key: together(contender, groups[GLOO]) for key, contender in all_of_them.items()},
                replace(_turns(size, quick), means=beside_others),
            )
            comparisons.append(Comparison(name, size, times, _name(dtype)))
    return CollectiveTimes(tuple(comparisons), beside_others)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _count(size: int, dtype: torch.dtype, world: World) -> int:
    return size // dtype.itemsize // world.size * world.size


def _in_turn(calls: list[Call]) -> Call:
    following = itertools.cycle(calls)
    return lambda group: next(following)(group)


def _cpus_of_node(world: World, group: dist.ProcessGroup) -> list[int]:
    """The CPUs of all ranks of this node, on its first rank; none on the others."""
    cpus: list[Any] = [None] * world.size
    dist.all_gather_object(cpus, (world.node_rank, allowed_cpus()), group=group)
    here = {cpu for node, theirs in cpus if node == world.node_rank for cpu in theirs}
    return sorted(here) if world.local_rank == 0 else []


def _plan(quick: bool, beside_others: bool) -> list[Measurement]:
    allreduces = [("allreduce", _allreduce, dtype, size) for dtype, sizes in _ALLREDUCE_SIZES.items() for size in sizes]
    others = [(name, operation, torch.float32, size) for name, operation in _OTHERS.items() for size in _OTHER_SIZES]
    if beside_others:
        return [one for one in allreduces if one[2] is torch.float32 and one[3] in _BUSY_SIZES[: 1 if quick else None]]
    if quick:
        return [*allreduces[:2], *allreduces[6:7], *others[::2]]
    return [*allreduces, *others]


def _turns(size: int, quick: bool) -> Turns:
    """Enough calls for a steady median: some tenths of a second per turn on the slowest contender."""
    if quick:
        return Turns(rounds=2, calls=5, warm_up=1)
    if size <= 64 * _KB:
        return Turns(rounds=5, calls=200, warm_up=40)
    return Turns(rounds=5, calls=min(max(160 * _MB // size, 5), 60), warm_up=3)


def _by_operation(comparisons: tuple[Comparison, ...]) -> Iterator[tuple[tuple[str, str], list[Comparison]]]:
    for kind, group in itertools.groupby(comparisons, lambda one: (one.operation, one.dtype)):
        yield kind, list(group)


def _times(comparisons: list[Comparison]) -> str:
    names = [name for name in _CONTENDERS if any(name in one.timings for one in comparisons)]
    rows = [
        [table.size_cell(one.size), *(table.time_cell(one.timings.get(name)) for name in names)] for one in comparisons
    ]
    return table.render(["size", *names], rows)


def _ratios(comparisons: list[Comparison]) -> str:
    pairs = [(a, b) for a, b in _RATIOS if any(one.ratio(a, b) for one in comparisons)]
    rows = [[table.size_cell(one.size), *(table.ratio_cell(one.ratio(a, b)) for a, b in pairs)] for one in comparisons]
    return table.render(["size", *(f"{a} / {b}" for a, b in pairs)], rows)
