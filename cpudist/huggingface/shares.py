"""The samples of a step, in shares as equal as they can be, for a number of ranks that does not divide them.

A step of 32 samples on 3 ranks is 11 + 11 + 10. It has the samples that it would have on the ranks that the training
was begun with, so that epochs, the learning-rate schedule and all that counts steps stay as they are. A mean over 11
samples has a larger part in the step's gradient than one over 10: the weights say how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, cycle, islice, pairwise, repeat
from typing import Any

from torch.utils.data import BatchSampler


@dataclass(frozen=True)
class Begun:
    """What a step and an epoch are in a training, by the ranks that it was begun with.

    Attributes:
        world_size: the number of these ranks.
        samples_per_step: between two steps of the optimizer, on all ranks.
        samples_per_batch: those that all ranks compute at once; an epoch is filled up to a multiple of it, by its first
            samples, or cut off there.
    """

    world_size: int
    samples_per_step: int
    samples_per_batch: int


class Shares:
    """How `ranks` ranks share the steps of a training: each step in `accumulation` batches of each rank.

    Args:
        begun: what the steps are; not fewer samples than there are ranks.
        ranks: their number.
        batch_size: the largest batch of a rank. Where that is 1, one may have 2: no rank can be without a batch.
        drop_last: whether an epoch is cut off rather than filled up.
    """

    def __init__(self, begun: Begun, ranks: int, batch_size: int, drop_last: bool) -> None:
        self.begun, self.ranks, self._drop_last = begun, ranks, drop_last
        self.accumulation = min(-(-begun.samples_per_step // (ranks * batch_size)), begun.samples_per_step // ranks)
        self.batch_size = len(self.batches(begun.samples_per_step)[0])

    def epoch(self, samples: int) -> tuple[int, int]:
        """The whole steps in an epoch of so many samples, and how many samples a smaller one after them has, or 0."""
        whole, rest = divmod(samples, self.begun.samples_per_step)
        batches, more = divmod(rest, self.begun.samples_per_batch)
        rest = self.begun.samples_per_batch * (batches + (more > 0 and not self._drop_last))
        return whole, max(rest, self.ranks) if rest else 0

    def batches(self, samples: int) -> list[range]:
        """A step of so many samples as batches of consecutive ones, the larger ones first: one of each rank in turn."""
        number = self.ranks * min(self.accumulation, samples // self.ranks)
        size, larger = divmod(samples, number)
        ends = accumulate([size + 1] * larger + [size] * (number - larger), initial=0)
        return [range(start, end) for start, end in pairwise(ends)]

    def weights(self, samples: int, rank: int) -> list[float]:
        """By how much the mean over each batch of `rank` counts more than it would if all batches had one size."""
        batches = self.batches(samples)
        return [len(batch) * len(batches) / samples for batch in batches[rank :: self.ranks]]


class SharedSampler(BatchSampler):
    """In the place of accelerate's BatchSamplerShard: the batches that `rank` has by `shares`.

    Args:
        batch_sampler: whose `sampler` is the order of the samples, the same on every rank. accelerate and Trainer
            replace that one, and call its `set_epoch`.
    """

    split_batches = False
    drop_last = False

    def __init__(self, batch_sampler: Any, shares: Shares, rank: int) -> None:
        self.batch_sampler, self._shares, self._rank = batch_sampler, shares, rank
        self.batch_size, self.num_processes = shares.batch_size, shares.ranks
        self.samples_per_step = shares.begun.samples_per_step

    def __len__(self) -> int:
        whole, rest = self._epoch()
        return whole * self._shares.accumulation + (len(self._shares.weights(rest, self._rank)) if rest else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = cycle(self.batch_sampler.sampler)
        for samples in self._steps():
            step = list(islice(order, samples))
            for batch in self._shares.batches(samples)[self._rank :: self.num_processes]:
                yield step[batch.start : batch.stop]

    def weights(self, step: int = 0) -> Iterator[list[float]]:
        """`Shares.weights` of this rank, for each step of an epoch from `step` on, which counts those of all epochs."""
        return (self._shares.weights(samples, self._rank) for samples in self._steps(step))

    def _steps(self, step: int = 0) -> Iterator[int]:
        """How many samples each step has."""
        whole, rest = self._epoch()
        steps = chain(repeat(self.samples_per_step, whole), [rest] if rest else [])
        return islice(steps, step % max(whole + (rest > 0), 1), None)

    def _epoch(self) -> tuple[int, int]:
        return self._shares.epoch(len(self.batch_sampler.sampler))
