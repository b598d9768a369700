"""Cases for collectives.py, the same on every rank of a job, and the values that they must give.

Hypothesis draws the cases on rank 0, which hands them to the others through the job's store. Every rank knows all
ranks' inputs, so it computes what it must receive. Values are small integers: sums are exact in every type.
"""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import cpudist
from cpudist import job

world = cpudist.init("ccl", timeout=60)
SUBGROUP = list(range(world.size - 1)) if world.size > 2 else [0, 1]
subgroup = dist.new_group(SUBGROUP)
REVERSED = dist.new_group(list(reversed(range(world.size))))

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
ANY = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
OPERATIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]

_settings = settings(
    max_examples=int(sys.argv[1]) if len(sys.argv) > 1 else 60,
    derandomize=True,
    database=None,
    deadline=None,
    # No shrinking: the other ranks would not follow.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

_case_number = itertools.count()


def shared(case: tuple | None) -> tuple | None:
    """Rank 0's case, on every rank; None is the end of a property."""
    key = f"case/{next(_case_number)}"
    if world.rank == 0:
        job.require().store.set(key, pickle.dumps(case))
        return case
    return pickle.loads(job.require().store.get(key))


def property_test(test: Callable[..., None], *strategies: st.SearchStrategy) -> Callable[[], None]:
    """Run a test on drawn cases; a failure ends the job at once, for Hypothesis would try it again on rank 0 alone."""

    def body(case: tuple) -> None:
        try:
            test(*case)
        except Exception as error:  # noqa: BLE001 - all of them end the job
            error.args = (f"{test.__name__}{case}: {error}",)
            sys.excepthook(type(error), error, error.__traceback__)

    def run() -> None:
        if world.rank == 0:
            _settings(given(st.tuples(*strategies))(lambda case: body(shared(case))))()
            shared(None)
        else:
            while (case := shared(None)) is not None:
                body(case)

    return run


def cases(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Callable[[], None]]:
    return lambda test: property_test(test, *strategies)


shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1023,), (64, 33), (3, 1 << 10, 7), (1_200_001,), (2, 600_000)]),
)
layouts = st.sampled_from(["contiguous", "transposed", "strided"])
seeds = st.integers(0, 2**31)


# Elements of each rank's share: from none to a million times those of another rank.
shares = st.lists(st.sampled_from([0, 1, 7, 300, 60_000, 1_000_000]), min_size=world.size, max_size=world.size)


@dataclass(frozen=True)
class Group:
    name: str
    ranks: list[int]

    @property
    def handle(self) -> dist.ProcessGroup | None:
        return {"world": None, "subgroup": subgroup, "reversed": REVERSED}[self.name]

    @property
    def rank(self) -> int:
        return self.ranks.index(world.rank)

    @property
    def size(self) -> int:
        return len(self.ranks)


EVERYONE = list(range(world.size))
groups = st.sampled_from([Group("world", EVERYONE), Group("subgroup", SUBGROUP), Group("reversed", EVERYONE)])


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 31 + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    low, high = (0, 3) if dtype == torch.uint8 else (-2, 3)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in memory of another layout."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and tensor.dim() >= 1:
        wide = torch.stack([tensor, tensor], dim=-1)
        return wide[..., 0]
    return tensor.clone()


def reduced(tensors: list[torch.Tensor], name: str) -> torch.Tensor:
    if tensors[0].dtype == torch.bool:
        combine = torch.logical_or if name in ("SUM", "MAX") else torch.logical_and
        return functools.reduce(combine, tensors)
    if name in ("MIN", "MAX"):
        return functools.reduce(torch.minimum if name == "MIN" else torch.maximum, tensors)
    if name == "PRODUCT":
        return functools.reduce(operator.mul, tensors)
    total = functools.reduce(operator.add, tensors)
    if name == "SUM":
        return total
    return total / len(tensors) if total.is_floating_point() else total.div(len(tensors), rounding_mode="trunc")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-2 if expected.dtype == torch.bfloat16 else 1e-3, atol=1e-6)


def finish(work: dist.Work | None, how: str) -> None:
    if work is None:
        return
    if how == "future":
        work.get_future().wait()
    else:
        work.wait()
    assert work.is_completed()


ways = st.sampled_from(["sync", "wait", "future"])


def reduction_cases(function: Callable[..., None]) -> Callable[[], None]:
    reducible = st.sampled_from([*FLOATS, *INTEGERS, torch.bool])
    combinations = st.tuples(reducible, st.sampled_from(OPERATIONS)).filter(
        lambda case: not (case[0] == torch.bool and case[1] == "AVG")
    )
    return property_test(function, shapes, combinations, layouts, seeds, groups, ways)


@dataclass(frozen=True)
class Begun:
    """A call in flight, the tensors that it writes to, and what they must hold in the end."""

    work: dist.Work
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor]

    def finish(self) -> None:
        self.work.wait()
        for actual, wanted in zip(self.outputs, self.expected, strict=True):
            assert torch.equal(actual.to_dense(), wanted), f"{actual} is not {wanted}"


def begin(name: str, counts: list[int], dtype: torch.dtype, seed: int, group: Group) -> Begun:
    """Begin a collective of `group` in which rank r of it has counts[r] elements; a sparse sum: so many values."""
    me, size = group.rank, group.size
    root, handle = group.ranks[seed % size], group.handle
    counts = counts[:size]

    def part(source: int, target: int, count: int) -> torch.Tensor:
        return values((count,), dtype, seed + target, source)

    def empty(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.zeros_like(tensor) for tensor in tensors]

    everyone = range(size)
    mine = [part(source, 0, count) for source, count in enumerate(counts)]
    if name == "all_gather":
        outputs = empty(mine)
        return Begun(dist.all_gather(outputs, mine[me], handle, async_op=True), outputs, mine)
    if name == "gather":
        mine = mine if world.rank == root else []
        outputs = empty(mine)
        own = part(me, 0, counts[me])
        return Begun(dist.gather(own, outputs or None, root, handle, async_op=True), outputs, mine)
    if name == "scatter":
        outputs = empty([mine[me]])
        inputs = mine if world.rank == root else None
        return Begun(dist.scatter(outputs[0], inputs, root, handle, async_op=True), outputs, [mine[me]])
    if name == "all_to_all":
        expected = [part(source, me, counts[source - me]) for source in everyone]
        inputs, outputs = [part(me, target, counts[me - target]) for target in everyone], empty(expected)
        return Begun(dist.all_to_all(outputs, inputs, handle, async_op=True), outputs, expected)
    if name == "reduce_scatter":
        inputs = [part(me, target, count) for target, count in enumerate(counts)]
        expected = [functools.reduce(operator.add, [part(source, me, counts[me]) for source in everyone])]
        outputs = empty(expected)
        return Begun(dist.reduce_scatter(outputs[0], inputs, group=handle, async_op=True), outputs, expected)
    rows = [
        torch.sparse_coo_tensor(torch.arange(n)[None], torch.ones(n), (max(counts),), check_invariants=True)
        for n in counts
    ]
    total = functools.reduce(operator.add, [row.to_dense() for row in rows])
    return Begun(dist.all_reduce(rows[me], group=handle, async_op=True), [rows[me]], [total])


COLLECTIVES = ["all_gather", "gather", "scatter", "all_to_all", "reduce_scatter", "sparse all_reduce"]
calls = st.tuples(st.sampled_from(COLLECTIVES), shares, st.sampled_from([*FLOATS, *INTEGERS]), seeds, groups)
