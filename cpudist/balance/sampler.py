"""The batches of a rank in a user's own loop; huggingface/uneven_shares.py has the batches of Trainer."""

from collections import deque
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from cpudist.balance.agreed import Balance, Batch
from cpudist.balance.division import divide
from cpudist.errors import UserError
from cpudist.supervision.step_counter import StepCounter


class SharesSampler(Sampler[list[int]]):
    """Yield this rank's part of each global batch, which has the same samples as with `DistributedSampler`.

    No sample is repeated at the end of an epoch: a rank without a sample in the last batch gets a filler of weight 0.
    The arguments are those of `cpudist.shares`.
    """

    def __init__(
        self, balance: Balance, data: Sized, batch_size: int, *, shuffle: bool, seed: int, drop_last: bool
    ) -> None:
        self._balance, self._data = balance, data
        self._samples = batch_size * balance.ranks
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._name = balance.number_sampler()
        self._total = 0  # batches that the loop has taken since the job has started
        self._ahead: deque[Batch] = deque()  # batches yielded, but not taken by the loop yet
        self._epoch = self._start = self._taken = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the order of samples; only the epoch of a loaded state resumes midway."""
        if epoch != self._epoch:
            self._epoch, self._start, self._taken = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position of the loop, and the number of samples in a global batch."""
        return {"epoch": self._epoch, "batch": self._taken, "samples": self._samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at the position of a saved state, with its global batch size, on any number of ranks."""
        self._epoch, self._start, self._samples = state["epoch"], state["batch"], state["samples"]
        self._taken = self._start

    def __len__(self) -> int:
        whole, rest = divmod(len(self._data), self._samples)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        before = self._total - self._start  # batches taken ahead do not count: ranks may differ in them
        self._taken, self._start = self._start, 0  # the next epoch begins at its start
        self._ahead.clear()
        for number in range(self._taken, len(self)):
            whole = order[number * self._samples : (number + 1) * self._samples]
            shares = divide(max(len(whole), self._balance.ranks), self._balance.agreed(self._name, before + number))
            begin = sum(shares[: self._balance.rank])
            own = whole[begin : begin + shares[self._balance.rank]]
            self._ahead.append(Batch(len(own) or 1, self._balance.ranks * len(own) / len(whole)))
            yield own or order[:1]

    def take(self) -> None:
        """Note that the loop takes the oldest yielded batch that it has not taken yet."""
        self._taken, self._total = self._taken + 1, self._total + 1
        self._balance.take(self._ahead.popleft())

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(len(self._data)))
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: list[int] = torch.randperm(len(self._data), generator=generator).tolist()
        return order


def follow_loaders(balance: Balance, counter: StepCounter) -> None:
    """Tell `balance` of each batch that the loop takes from a DataLoader, and of each step."""

    def taken(iterator: Any) -> None:
        sampler = iterator._index_sampler
        if not isinstance(sampler, SharesSampler):
            balance.take_other()
        elif getattr(iterator, "_in_order", True):
            sampler.take()
        else:
            raise UserError("the batches of cpudist.shares must come in their order; leave out in_order=False")

    counter.after_batch.append(taken)
    counter.after_step.append(balance.end_step)
