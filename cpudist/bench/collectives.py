"""How long collectives take: oneCCL by itself, the ccl process group, gloo.

Raw oneCCL is a loop in C++ (csrc/oneccl/baseline.cpp); what the ccl group needs more than that is the price of
`torch.distributed` and Python. The groups are called through `torch.distributed`, as a script would.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from cpudist import job
from cpudist.backends.ccl import extension
from cpudist.bench import table
from cpudist.bench.measure import CCL, GLOO, PIECES, RAW, both_groups, timed, together
from cpudist.bench.timing import Contender, Ratio, Timings, Turns, ratio, take_turns

if TYPE_CHECKING:
    from cpudist.world import World

_KB, _MB = 1 << 10, 1 << 20
_ALLREDUCE_SIZES = (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 96 * _MB)
_OTHER_SIZES = (1 * _MB, 16 * _MB)
_PIECE_BYTES = 4 * _MB  # how the ccl group cuts a large allreduce (csrc/oneccl/transport.cpp)

_CONTENDERS = (RAW, PIECES, CCL, GLOO)
_RATIOS = ((CCL, RAW), (GLOO, CCL))

# Allocates the buffers for so many float32 elements on so many ranks; returns the call, for any group.
# The elements are zero: they stay zero however often they are summed.
Operation = Callable[[int, int], Callable[[dist.ProcessGroup], object]]


def _allreduce(count: int, size: int) -> Callable[[dist.ProcessGroup], object]:
    data = torch.zeros(count)
    return lambda group: dist.all_reduce(data, group=group)


def _all_gather(count: int, size: int) -> Callable[[dist.ProcessGroup], object]:
    part, whole = torch.zeros(count // size), torch.zeros(count)
    return lambda group: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(count: int, size: int) -> Callable[[dist.ProcessGroup], object]:
    part, whole = torch.zeros(count // size), torch.zeros(count)
    return lambda group: dist.reduce_scatter_tensor(part, whole, group=group)


def _broadcast(count: int, size: int) -> Callable[[dist.ProcessGroup], object]:
    data = torch.zeros(count)
    return lambda group: dist.broadcast(data, src=0, group=group)


def _all_to_all(count: int, size: int) -> Callable[[dist.ProcessGroup], object]:
    received, sent = torch.zeros(count), torch.zeros(count)
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

    def ratio(self, slower: str, faster: str) -> Ratio | None:
        """None where one of the two was not measured."""
        if slower not in self.timings or faster not in self.timings:
            return None
        return ratio(self.timings[slower], self.timings[faster])

    def as_dict(self) -> dict[str, Any]:
        ratios = {f"{a}/{b}": found for a, b in _RATIOS if (found := self.ratio(a, b))}
        return {
            "operation": self.operation,
            "bytes": self.size,
            "seconds": {name: timings.as_dict() for name, timings in self.timings.items()},
            "ratios": {name: found.as_dict() for name, found in ratios.items()},
        }


@dataclass(frozen=True)
class CollectiveTimes:
    """Everything that one run measured."""

    comparisons: tuple[Comparison, ...]

    def table(self) -> str:
        """One block of lines per operation."""
        return "\n\n".join(
            f"{operation}, float32\n{_block(list(comparisons))}"
            for operation, comparisons in itertools.groupby(self.comparisons, key=lambda one: one.operation)
        )

    def as_list(self) -> list[dict[str, Any]]:
        return [comparison.as_dict() for comparison in self.comparisons]


def run(world: World, say: Callable[[str], None], quick: bool = False) -> CollectiveTimes:
    """Measure on every rank of `world`; all ranks return the same figures. `say` is told how far it is."""
    # torch 2.13 has new names for two of the calls; torch 2.8 knows only the ones used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    groups = both_groups()
    comparisons = []
    for name, operation, size in _plan(quick):
        say(f"{name} {table.size_cell(size)}")
        call = operation(size // 4 // world.size * world.size, world.size)
        contenders = _raw_allreduce(world, size) if operation is _allreduce else {}
        for backend, group in groups.items():
            contenders[backend] = timed(partial(call, group))
        contenders = {key: together(contender, groups[GLOO]) for key, contender in contenders.items()}
        comparisons.append(Comparison(name, size, take_turns(contenders, _turns(size, quick))))
    return CollectiveTimes(tuple(comparisons))


def _plan(quick: bool) -> list[tuple[str, Operation, int]]:
    allreduces = [("allreduce", _allreduce, size) for size in _ALLREDUCE_SIZES]
    others = [(name, operation, size) for name, operation in _OTHERS.items() for size in _OTHER_SIZES]
    return allreduces[:2] + others[::2] if quick else allreduces + others


def _turns(size: int, quick: bool) -> Turns:
    """Enough calls for a steady median: some tenths of a second per turn on the slowest contender."""
    if quick:
        return Turns(rounds=2, calls=5, warm_up=1)
    if size <= 64 * _KB:
        return Turns(rounds=5, calls=200, warm_up=20)
    return Turns(rounds=5, calls=min(max(160 * _MB // size, 5), 60), warm_up=3)


_number = itertools.count()  # of a raw communicator: its key in the job's store must be new


def _raw_allreduce(world: World, size: int) -> dict[str, Contender]:
    """oneCCL without `torch.distributed`: in one call, and in pieces where the ccl group makes pieces."""

    def in_pieces(piece: int) -> Contender:
        def measure(calls: int) -> list[float]:
            store = PrefixStore(f"bench/raw/{next(_number)}", job.require().meeting.store)
            return list(
                extension.load().allreduce_baseline(
                    store, world.rank, world.size, bytes=size, repeats=calls, piece_bytes=piece
                )
            )

        return measure

    contenders = {RAW: in_pieces(size)}
    if size > _PIECE_BYTES:
        contenders[PIECES] = in_pieces(_PIECE_BYTES)
    return contenders


def _block(comparisons: list[Comparison]) -> str:
    names = [name for name in _CONTENDERS if any(name in one.timings for one in comparisons)]
    ratios = [(a, b) for a, b in _RATIOS if a in names and b in names]
    rows = [
        [
            table.size_cell(one.size),
            *(table.time_cell(one.timings.get(name)) for name in names),
            *(table.ratio_cell(one.ratio(a, b)) for a, b in ratios),
        ]
        for one in comparisons
    ]
    return table.render(["size", *names, *(f"{a} / {b}" for a, b in ratios)], rows)
