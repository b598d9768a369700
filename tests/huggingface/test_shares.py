"""Unequal shares: every step has the samples that it would have on the ranks that the training was begun with."""

from collections import Counter
from dataclasses import dataclass

import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from cpudist.huggingface.uneven_shares import BatchGeometry, SharedSampler, Shares

pytestmark = pytest.mark.versions


@dataclass(frozen=True)
class Case:
    """A training begun with so many ranks, batches and accumulated batches; it goes on at `ranks`."""

    samples: int
    began: int
    batch: int
    accumulation: int
    ranks: int
    batch_now: int
    drop_last: bool
    speeds: list[float]

    def shares(self) -> Shares:
        before = self.began * self.batch
        assume(before * self.accumulation >= self.ranks)
        geometry = BatchGeometry(self.began, before * self.accumulation, before)
        return Shares(geometry, self.ranks, self.batch_now, self.drop_last)

    def order(self) -> BatchSampler:
        return BatchSampler([number * 7 + 1 for number in range(self.samples)], self.batch, self.drop_last)

    def everyones(self) -> list[SharedSampler]:
        speeds = tuple(self.speeds[: self.ranks])
        return [SharedSampler(self.order(), self.shares(), rank, lambda _: speeds) for rank in range(self.ranks)]


small = st.integers(1, 6)
speeds = st.just([1.0] * 9) | st.lists(st.floats(0.05, 20), min_size=9, max_size=9)
cases = st.builds(
    Case, st.integers(0, 150), small, small, small, st.integers(1, 9), st.integers(1, 12), st.booleans(), speeds
)


def _by_step(everyones: list[list[list[int]]], accumulation: int) -> list[Counter[int]]:
    """The samples of each step, from every rank's batches, by Trainer's rule: the last step has what is left."""
    steps = -(-len(everyones[0]) // accumulation)
    return [
        Counter(
            sample
            for batches in everyones
            for batch in batches[step * accumulation : (step + 1) * accumulation]
            for sample in batch
        )
        for step in range(steps)
    ]


@given(cases)
def test_each_step_has_the_samples_of_accelerates(case: Case) -> None:
    """All samples, also those repeated at the end of an epoch; a rank without any gets one."""
    before = [list(BatchSamplerShard(case.order(), case.began, rank)) for rank in range(case.began)]
    expected = _by_step(before, case.accumulation)
    everyones = [list(sampler) for sampler in case.everyones()]
    assert {len(batches) for batches in everyones} == {len(sampler) for sampler in case.everyones()}
    assert all(batch for batches in everyones for batch in batches)
    if len(set(case.speeds[: case.ranks])) == 1:
        assert all(len(batch) <= max(case.batch_now, 2) for batches in everyones for batch in batches)
    found = _by_step(everyones, case.shares().accumulation)
    assert len(found) == len(expected)
    assert found[:-1] == expected[:-1]
    if expected and expected[-1].total() >= case.ranks:
        assert found[-1] == expected[-1]
    elif expected:
        assert found[-1].total() == case.ranks
        assert not expected[-1] - found[-1]
