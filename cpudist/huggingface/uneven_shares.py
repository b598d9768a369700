"""Share the samples of a step as equally as possible among ranks whose number does not divide them.

A step of 32 samples on 3 ranks is 11 + 11 + 10. A mean over 11 samples needs a larger weight in the step's gradient
than a mean over 10.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, pairwise
from typing import Any

from torch.utils.data import BatchSampler


@dataclass(frozen=True)
class BatchGeometry:
    """The sizes of a training's steps and batches on all ranks, as it was started on `world_size` ranks.

    Attributes:
        samples_per_step: the samples between two steps of the optimizer.
        samples_per_batch: the samples that all ranks compute at once. An epoch is padded with its first samples, or
            truncated, to a multiple of this number.
    """

    world_size: int
    samples_per_step: int
    samples_per_batch: int


class Shares:
    """Divide the steps of a training among ranks; each rank computes a step in `accumulation` batches.

    Args:
        geometry: the sizes of the steps; a step must not have fewer samples than there are ranks.
        batch_size: the largest batch of a rank. If it is 1, a batch may have 2 samples, since every rank needs one.
    """

    def __init__(self, geometry: BatchGeometry, ranks: int, batch_size: int, drop_last: bool) -> None:
        self.geometry, self.ranks, self._drop_last = geometry, ranks, drop_last
        samples = geometry.samples_per_step
        self.accumulation = min(-(-samples // (ranks * batch_size)), samples // ranks)
        self.batch_size = len(self.batches(samples)[0])

    def steps(self, samples: int) -> list[int]:
        """Return the number of samples in each step of an epoch; the last one may have fewer."""
        whole, rest = divmod(samples, self.geometry.samples_per_step)
        batches, more = divmod(rest, self.geometry.samples_per_batch)
        rest = self.geometry.samples_per_batch * (batches + (more > 0 and not self._drop_last))
        return [self.geometry.samples_per_step] * whole + [max(rest, self.ranks)] * (rest > 0)

    def batches(self, samples: int) -> list[range]:
        """Divide a step into batches of consecutive samples; batch i is for rank i % ranks."""
        number = self.ranks * min(self.accumulation, samples // self.ranks)
        size, larger = divmod(samples, number)
        ends = accumulate([size + 1] * larger + [size] * (number - larger), initial=0)
        return [range(start, end) for start, end in pairwise(ends)]

    def weights(self, samples: int, rank: int) -> list[float]:
        """Return the weight of the mean of each batch of `rank`; 1 if all batches have the same size."""
        batches = self.batches(samples)
        return [len(batch) * len(batches) / samples for batch in batches[rank :: self.ranks]]


class SharedSampler(BatchSampler):
    """Yield a rank's batches of `shares`; it replaces accelerate's BatchSamplerShard.

    `batch_sampler.sampler` yields the samples in the same order on every rank. accelerate and Trainer replace it, and
    call its `set_epoch`.
    """

    split_batches = False
    drop_last = False

    def __init__(self, batch_sampler: Any, shares: Shares, rank: int) -> None:
        # Like accelerate's BatchSamplerShard, do not call torch's __init__: `batch_sampler.sampler` keeps the order.
        self.batch_sampler, self._shares, self._rank = batch_sampler, shares, rank
        self.batch_size, self.num_processes = shares.batch_size, shares.ranks
        self.samples_per_step = shares.geometry.samples_per_step

    def __len__(self) -> int:
        return sum(map(len, self.weights()))

    def __iter__(self) -> Iterator[list[int]]:
        order = cycle(self.batch_sampler.sampler)
        for samples in self._steps():
            step = list(islice(order, samples))
            for batch in self._shares.batches(samples)[self._rank :: self.num_processes]:
                yield step[batch.start : batch.stop]

    def weights(self, step: int = 0) -> Iterator[list[float]]:
        """Yield this rank's batch weights by step of an epoch, starting at `step` (counted over all epochs)."""
        steps = self._steps()
        return (self._shares.weights(samples, self._rank) for samples in steps[step % max(len(steps), 1) :])

    def _steps(self) -> list[int]:
        return self._shares.steps(len(self.batch_sampler.sampler))
