"""Calls for collectives.py, the same ones on every rank of a job, and what they must give.

Hypothesis draws the cases on rank 0, which hands them to the others through the job's store. Every rank knows all
ranks' inputs, so it computes what it must receive. Values are small integers: sums are exact in every type.
"""

import functools
import itertools
import operator
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import cpudist
from cpudist import job

world = cpudist.init("ccl", timeout=60)
EVERYONE = list(range(world.size))
SUBGROUP = EVERYONE[:-1] if world.size > 2 else [0, 1]
GROUPS = {  # name -> ranks, and what torch knows the group by
    "world": (EVERYONE, None),
    "subgroup": (SUBGROUP, dist.new_group(SUBGROUP)),
    "reversed": (EVERYONE, dist.new_group(EVERYONE[::-1])),
}

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
REDUCTIONS = {
    "SUM": operator.add,
    "AVG": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}

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


def cases(*strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test on drawn cases; a failure ends the job at once, for Hypothesis would try it again on rank 0 alone."""

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
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

    return decorate


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
    total = functools.reduce(REDUCTIONS[name], tensors)
    if name != "AVG":
        return total
    return total / len(tensors) if total.is_floating_point() else total.div(len(tensors), rounding_mode="trunc")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-2 if expected.dtype == torch.bfloat16 else 1e-3, atol=1e-6)


@dataclass
class Call:
    """A collective of a group, in which its rank r gives, or gets, a share of shape `shapes[r]`.

    Where the shares are equal, torch's function for one flat tensor is called as well.
    """

    name: str
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    reduction: str
    layout: str
    seed: int
    group: str
    way: str = "wait"
    pending: list[tuple[dist.Work | None, list[torch.Tensor], list[torch.Tensor]]] = field(
        default_factory=list, repr=False
    )

    def begin(self) -> None:
        self.ranks, self.handle = GROUPS[self.group]
        if world.rank not in self.ranks:
            return
        self.size, self.me = len(self.ranks), self.ranks.index(world.rank)
        self.root = self.ranks[self.seed % self.size]
        self.is_root = world.rank == self.root
        self.shapes = self.shapes[: self.size]
        self.equal = len(set(self.shapes)) == 1
        self.op = getattr(dist.ReduceOp, self.reduction)
        getattr(self, self.name)()

    def finish(self) -> None:
        for work, outputs, expected in self.pending:
            if work is not None:
                work.get_future().wait() if self.way == "future" else work.wait()
                assert work.is_completed()
            for actual, wanted in zip(outputs, expected, strict=True):
                same(actual.to_dense(), wanted)

    @functools.cached_property
    def given(self) -> list[torch.Tensor]:
        """The share of each rank."""
        return [self.part(source, source) for source in range(self.size)]

    @functools.cached_property
    def own(self) -> torch.Tensor:
        return laid_out(self.given[self.me], self.layout)

    def part(self, source: int, share: int, target: int = 0) -> torch.Tensor:
        """What rank `source` has for rank `target`, as large as the share of rank `share`."""
        return values(self.shapes[share], self.dtype, self.seed + target, self.ranks[source])

    def run(
        self, outputs: list[torch.Tensor], expected: list[torch.Tensor], function: Callable[..., object], *args: object
    ) -> None:
        work = function(*args, group=self.handle, async_op=self.way != "sync")
        self.pending.append((work, outputs, expected))

    def empty(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [laid_out(torch.zeros_like(tensor), self.layout) for tensor in tensors]

    def all_reduce(self) -> None:
        self.run([self.own], [reduced(self.given, self.reduction)], dist.all_reduce, self.own, self.op)

    def sparse_all_reduce(self) -> None:
        """Rows of two values, some of which a rank names twice."""
        counts = [shape[0] for shape in self.shapes]
        rows = []
        for source, count in enumerate(counts):
            indices, pairs = torch.arange(count)[None] // 2, values((count, 2), torch.float32, self.seed, source)
            rows.append(torch.sparse_coo_tensor(indices, pairs, (max(counts), 2), check_invariants=True))
        total = functools.reduce(operator.add, [row.to_dense() for row in rows])
        self.run([rows[self.me]], [total], dist.all_reduce, rows[self.me])

    def reduce(self) -> None:
        expected = reduced(self.given, self.reduction) if self.is_root else self.given[self.me]
        self.run([self.own], [expected], dist.reduce, self.own, self.root, self.op)

    def reduce_scatter(self) -> None:
        everyone = range(self.size)
        inputs = [laid_out(self.part(self.me, target, target), self.layout) for target in everyone]
        expected = reduced([self.part(source, self.me, self.me) for source in everyone], self.reduction)
        outputs = self.empty([expected])
        self.run(outputs, [expected], dist.reduce_scatter, *outputs, inputs, self.op)
        if self.equal:
            flat = torch.empty(expected.numel(), dtype=self.dtype)
            self.run([flat], [expected.reshape(-1)], dist.reduce_scatter_tensor, flat, joined(inputs), self.op)

    def broadcast(self) -> None:
        expected = self.given[self.ranks.index(self.root)]
        tensor = self.own if self.is_root else self.empty([expected])[0]
        self.run([tensor], [expected], dist.broadcast, tensor, self.root)

    def all_gather(self) -> None:
        outputs = self.empty(self.given)
        self.run(outputs, self.given, dist.all_gather, outputs, self.own)
        if self.equal and not self.dtype.is_complex:
            flat = torch.empty(self.size * self.own.numel(), dtype=self.dtype)
            self.run([flat], [joined(self.given)], dist.all_gather_into_tensor, flat, self.own.reshape(-1))

    def gather(self) -> None:
        expected = self.given if self.is_root else []
        outputs = self.empty(expected)
        self.run(outputs, expected, dist.gather, self.own, outputs or None, self.root)
        if self.equal and hasattr(dist, "gather_single"):  # since torch 2.14
            flat = [torch.empty(self.size * self.own.numel(), dtype=self.dtype)] if self.is_root else []
            arguments = self.own, flat[0] if flat else None, self.root
            self.run(flat, [joined(self.given)][: len(flat)], dist.gather_single, *arguments)

    def scatter(self) -> None:
        outputs = self.empty([self.own])
        inputs = [laid_out(tensor, self.layout) for tensor in self.given] if self.is_root else None
        self.run(outputs, [self.given[self.me]], dist.scatter, *outputs, inputs, self.root)

    def all_to_all(self) -> None:
        everyone = range(self.size)
        inputs = [laid_out(self.part(self.me, self.me - target, target), self.layout) for target in everyone]
        expected = [self.part(source, source - self.me, self.me) for source in everyone]
        outputs = self.empty(expected)
        self.run(outputs, expected, dist.all_to_all, outputs, inputs)
        flat = torch.empty(sum(tensor.numel() for tensor in expected), dtype=self.dtype)
        counts = [[tensor.numel() for tensor in tensors] for tensors in (expected, inputs)]
        self.run([flat], [joined(expected)], dist.all_to_all_single, flat, joined(inputs), *counts)


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1023,), (64, 33), (3, 1 << 10, 7), (1_200_001,), (2, 600_000)]),
)
layouts = st.sampled_from(["contiguous", "transposed", "strided"])
types = st.sampled_from([*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128])
seeds = st.integers(0, 2**31)
# From none to a million times the elements of another rank's.
_lengths = st.sampled_from([0, 1, 7, 300, 60_000, 1_000_000]).map(lambda length: (length,))
_unlike = st.lists(_lengths, min_size=world.size, max_size=world.size)
_reductions = st.tuples(st.sampled_from([*FLOATS, *INTEGERS, torch.bool]), st.sampled_from(sorted(REDUCTIONS))).filter(
    lambda case: case[0] not in FLOATS if case[1].startswith("B") else case != (torch.bool, "AVG")
)
_sums = st.tuples(st.sampled_from([*FLOATS, *INTEGERS]), st.just("SUM"))
_any = st.tuples(types, st.just("SUM"))


def calls(name: str, alone: bool) -> st.SearchStrategy[Call]:
    """Calls of this collective; those that are not alone are waited for later, with unequal shares where there are."""
    typed = _any if "reduce" not in name else _reductions if alone else _sums
    ways = st.sampled_from(["sync", "wait", "future"]) if alone else st.just("wait")
    alike = (shapes if alone else _lengths).map(lambda shape: [shape] * world.size)
    parts = alike if alone or name == "all_reduce" else _unlike
    drawn = st.tuples(parts, typed, layouts, seeds, st.sampled_from(sorted(GROUPS)), ways)
    return drawn.map(lambda drawn: Call(name, drawn[0], *drawn[1], *drawn[2:]))


TOGETHER = ["all_reduce", "all_gather", "gather", "scatter", "all_to_all", "reduce_scatter", "sparse_all_reduce"]
ALONE = ["reduce", "broadcast", *TOGETHER[:-1]]
