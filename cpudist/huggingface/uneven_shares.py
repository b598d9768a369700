"""Divide the samples of a step among ranks that cannot have equal shares, or whose speeds differ.

A step of 32 samples on 3 equal ranks is 11 + 11 + 10. A mean over 11 samples needs a larger weight in the step's
gradient than a mean over 10.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, pairwise
from typing import Any

from torch.utils.data import BatchSampler

from cpudist.balance.division import divide


@dataclass(frozen=True)
class BatchGeometry:
    """The sizes of a training's steps and batches over all ranks, as it was first started on `world_size` ranks."""

    world_size: int
    samples_per_step: int  # the samples between two steps of the optimizer
    # Samples of all ranks in one pass. An epoch is padded with its first samples, or cut, to a multiple of this number.
    samples_per_batch: int


class Shares:
    """Divide the steps of a training among ranks; each rank computes a full step in `accumulation` batches.

    Args:
        geometry: the sizes of the steps; a step must not have fewer samples than there are ranks.
        batch_size: a rank's largest batch at equal speeds; 2 may replace 1, so that no batch of a rank is empty.
    """

    def __init__(self, geometry: BatchGeometry, ranks: int, batch_size: int, drop_last: bool) -> None:
        self.geometry, self.ranks, self._drop_last = geometry, ranks, drop_last
        samples = geometry.samples_per_step
        self.accumulation = min(-(-samples // (ranks * batch_size)), samples // ranks)
        self.batch_size = len(self.batches(samples, (1.0,) * ranks)[0][0])

    def steps(self, samples: int) -> list[int]:
        """Return the number of samples in each step of an epoch of `samples`; the last step may have fewer."""
        whole, rest = divmod(samples, self.geometry.samples_per_step)
        batches, more = divmod(rest, self.geometry.samples_per_batch)
        rest = self.geometry.samples_per_batch * (batches + (more > 0 and not self._drop_last))
        return [self.geometry.samples_per_step] * whole + [max(rest, self.ranks)] * (rest > 0)

    def number_of_batches(self, samples: int) -> int:
        """Return the number of batches in which each rank computes a step."""
        return min(self.accumulation, samples // self.ranks)

    def batches(self, samples: int, speeds: tuple[float, ...]) -> list[list[range]]:
        """Divide a step in proportion to the ranks' speeds; return each rank's batches as ranges of its samples."""
        number = self.number_of_batches(samples)
        shares = divide(samples, speeds, least=number)
        sizes = [share // number + (batch < share % number) for share in shares for batch in range(number)]
        ranges = [range(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]
        return [ranges[rank * number : (rank + 1) * number] for rank in range(self.ranks)]


class SharedSampler(BatchSampler):
    """Yield a rank's batches of `shares`; it replaces accelerate's BatchSamplerShard.

    Args:
        batch_sampler: its `sampler` yields the samples in the same order on every rank. accelerate and Trainer may
            replace this sampler, and call its `set_epoch`.
        speeds: takes the number of a step and returns the speeds or shares of all ranks; called once a step, in order.
    """

    split_batches = False
    drop_last = False

    def __init__(
        self, batch_sampler: Any, shares: Shares, rank: int, speeds: Callable[[int], tuple[float, ...]]
    ) -> None:
        # Like accelerate's BatchSamplerShard, do not call torch's __init__: `batch_sampler.sampler` gives the order.
        self.batch_sampler, self._shares, self._rank, self._speeds = batch_sampler, shares, rank, speeds
        self.batch_size, self.num_processes = shares.batch_size, shares.ranks
        self.samples_per_step = shares.geometry.samples_per_step
        self._begun = 0  # the number of steps begun, over all epochs
        self._of_step: dict[int, list[tuple[int, float]]] = {}  # what `take` returns, by step of the epoch

    def __len__(self) -> int:
        return sum(map(self._shares.number_of_batches, self._steps()))

    def __iter__(self) -> Iterator[list[int]]:
        self._of_step = {}
        order = cycle(self.batch_sampler.sampler)
        for number, samples in enumerate(self._steps()):
            step = list(islice(order, samples))
            batches = self._shares.batches(samples, self._speeds(self._begun))[self._rank]
            self._begun += 1
            whole = samples / len(batches) / self.num_processes
            self._of_step[number] = [(len(batch), len(batch) / whole) for batch in batches]
            for batch in batches:
                yield step[batch.start : batch.stop]

    def take(self, step: int) -> list[tuple[int, float]]:
        """Return the size of each of this rank's batches in a yielded step, and the weight of the batch's mean loss.

        `step` is the number of the step in its epoch, or counted over all epochs.
        """
        return self._of_step.pop(step % max(len(self._steps()), 1), [])

    def _steps(self) -> list[int]:
        return self._shares.steps(len(self.batch_sampler.sampler))
