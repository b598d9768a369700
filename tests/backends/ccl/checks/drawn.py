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
