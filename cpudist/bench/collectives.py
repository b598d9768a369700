"""Measure collectives on the job's process group and on gloo, and for an allreduce also a memory copy of its size.

The groups are called through `torch.distributed`, as a script does. Buffers change between calls, as gradients do.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist

from cpudist.bench.report import Comparison
from cpudist.bench.timing import COPY, GLOO, Candidate, Turns, both_groups, in_turn, take_turns, timed, together
from cpudist.console import size as size_cell
from cpudist.optimization import precision
from cpudist.world import World

_KB, _MB = 1 << 10, 1 << 20
_ALLREDUCE_SIZES = {
    torch.float32: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 96 * _MB),
    torch.bfloat16: (1 * _KB, 64 * _KB, 1 * _MB, 4 * _MB, 25 * _MB),
}
_OTHER_SIZES = (16 * _KB, 256 * _KB, 1 * _MB, 16 * _MB)
_ROTATED_BYTES = 32 * _MB  # Rotate 2 to 32 buffers, if possible of this total size: a core's caches hold less.

# Returns further candidates for an allreduce by name. Arguments: bytes of a tensor, its type, number of tensors.
Rivals = Callable[[int, torch.dtype, int], Mapping[str, Candidate]]

_ALLREDUCE = "allreduce"
# name -> (collective, and for each of its tensors whether the tensor holds only one rank's part of the elements)
_OPERATIONS: dict[str, tuple[Callable[..., object], tuple[bool, ...]]] = {
    _ALLREDUCE: (dist.all_reduce, (False,)),
    "all_gather_into_tensor": (dist.all_gather_into_tensor, (False, True)),
    "reduce_scatter_tensor": (dist.reduce_scatter_tensor, (True, False)),
    "broadcast": (partial(dist.broadcast, src=0), (False,)),
    "all_to_all_single": (dist.all_to_all_single, (False, False)),
}


def run(
    world: World,
    say: Callable[[str], None],
    quick: bool = False,
    rivals: Rivals = lambda *_: {},
    groups: Mapping[str, dist.ProcessGroup] | None = None,
) -> list[Comparison]:
    """Measure on every rank of a job, and return the same figures on all ranks.

    `groups` are compared; None: the job's own group and gloo.
    """
    # torch 2.13 has new names for two of the calls; torch 2.8 has only the ones used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    own = both_groups(world.backend)
    comparisons = []
    for name, dtype, size in _plan(quick):
        say(f"{name} {precision.name(dtype)} {size_cell(size)}")
        buffers = max(2, min(32, _ROTATED_BYTES // size))
        count = size // dtype.itemsize // world.size * world.size
        call = in_turn([_call(name, count, world.size, dtype) for _ in range(buffers)])
        candidates = {backend: timed(partial(call, group=group)) for backend, group in (groups or own).items()}
        if name == _ALLREDUCE:
            candidates |= {COPY: _copy(count, dtype, buffers), **rivals(size, dtype, buffers)}
        times = take_turns(
            {key: together(candidate, own[GLOO]) for key, candidate in candidates.items()}, _turns(size, quick)
        )
        # gloo's time is divided by that of the job's group, and this by each other candidate's
        job, *others = times
        pairs = tuple((GLOO, job) if key == GLOO else (job, key) for key in others)
        comparisons.append(Comparison(name, precision.name(dtype), times, pairs, size))
    return comparisons


def _call(name: str, count: int, ranks: int, dtype: torch.dtype) -> Callable[..., object]:
    """Return a function that calls a collective on its own buffers, given the group; sums of zeros cannot overflow."""
    collective, divided = _OPERATIONS[name]
    return partial(collective, *(torch.zeros(count // ranks if one else count, dtype=dtype) for one in divided))


def _copy(count: int, dtype: torch.dtype, buffers: int) -> Candidate:
    """Return a candidate that copies `count` elements within the memory of each rank."""
    pairs = [(torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)) for _ in range(buffers)]
    return timed(in_turn(partial(target.copy_, source) for source, target in pairs))


def _plan(quick: bool) -> list[tuple[str, torch.dtype, int]]:
    allreduces = [(_ALLREDUCE, dtype, size) for dtype, sizes in _ALLREDUCE_SIZES.items() for size in sizes]
    others = [(name, torch.float32, size) for name in list(_OPERATIONS)[1:] for size in _OTHER_SIZES]
    if quick:
        return [*allreduces[:2], *allreduces[6:7], *others[2 :: len(_OTHER_SIZES)]]
    return [*allreduces, *others]


def _turns(size: int, quick: bool) -> Turns:
    """Return turns with enough calls for a steady median: a turn of the slowest candidate takes tenths of a second."""
    if quick:
        return Turns(rounds=2, calls=5, warm_up=1)
    if size <= 64 * _KB:
        return Turns(rounds=5, calls=200, warm_up=40)
    return Turns(rounds=5, calls=min(max(160 * _MB // size, 5), 60), warm_up=3)
