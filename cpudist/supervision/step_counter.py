"""Count the steps and batches of this rank, for `--stall`, the run record, `cpudist top` and other observers."""

import functools
import time
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from cpudist.patching.patch import Patch, apply
from cpudist.patching.undo import Changes


class StepCounter:
    """Counts steps of torch's optimizers and batches of torch's data loaders until `changes` are undone."""

    def __init__(self, changes: Changes) -> None:
        self.steps = self.batches = 0  # optimizer steps and batches so far
        self.loading = 0.0  # seconds that this rank has waited for batches
        self.after_step: list[Callable[[Any], object]] = []  # Functions that get the optimizer after each step.
        # Functions that get a data loader's iterator after each of its batches.
        self.after_batch: list[Callable[[Any], object]] = []
        changes.then(register_optimizer_step_post_hook(self._step).remove)
        apply(PATCHES, self, changes)

    def _step(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        for call in self.after_step:
            call(optimizer)

    def _timing(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            begin = time.perf_counter()
            batch = original(iterator)
            self.loading += time.perf_counter() - begin
            self.batches += 1
            for call in self.after_batch:
                call(iterator)
            return batch

        return next_batch


PATCHES = (
    Patch(
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
        "batches, and the waits for them, are counted",
        lambda original, counter: counter._timing(original),
        "self",
    ),
)
