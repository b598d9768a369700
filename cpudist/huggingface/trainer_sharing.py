"""Trainer's batches and its loss where ranks have unequal shares of a step's samples (shares.py)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpudist.errors import UserError
from cpudist.huggingface.shares import SharedSampler, Shares
from cpudist.huggingface.trainer_loss import WeightsByTrainer
from cpudist.huggingface.versions import ACCELERATE, check_known

_SHARD = ["batch_sampler", "num_processes", "process_index", "split_batches", "even_batches"]


@contextmanager
def sharing(trainer: Any, shares: Shares, weights: WeightsByTrainer) -> Iterator[None]:
    """Give `trainer` the batches that its rank has by `shares`, and `weights` those of each step's batches.

    Raises:
        UserError: in training, if the script shares out its data in another way than by accelerate.
    """
    load, collect = trainer.get_train_dataloader, trainer.get_batch_samples
    sampler: SharedSampler | None = None
    epoch: Any = None
    steps: Iterator[list[float]] = iter(())

    def make_sampler(batch_sampler: Any) -> SharedSampler:
        nonlocal sampler
        sampler = SharedSampler(batch_sampler, shares, trainer.args.process_index)
        return sampler

    def get_train_dataloader() -> Any:
        with _sharding_by(make_sampler):
            loader = load()
        if sampler is None:
            raise UserError(
                f"{shares.ranks} ranks cannot have equal shares of {shares.begun.samples_per_step} samples in a step, "
                f"and this script shares out its data in a way of its own: start {shares.begun.world_size} ranks"
            )
        return loader

    def get_batch_samples(epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal epoch, steps
        assert sampler is not None
        if epoch_iterator is not epoch:  # the first one begins where the checkpoint was saved
            resumed = epoch is None and not trainer.args.ignore_data_skip
            epoch, steps = epoch_iterator, sampler.weights(trainer.state.global_step if resumed else 0)
        weights[trainer] = iter(next(steps, []))  # transformers 4 asks for what it has skipped once more, at the end
        return collect(epoch_iterator, *args, **kwargs)

    def get_total_train_batch_size(args: Any) -> int:
        return shares.begun.samples_per_step

    own = (get_train_dataloader, get_batch_samples, get_total_train_batch_size)
    vars(trainer).update({method.__name__: method for method in own})
    try:
        yield
    finally:
        for method in own:
            del vars(trainer)[method.__name__]
        weights.pop(trainer, None)


@contextmanager
def _sharding_by(make_sampler: Callable[[Any], SharedSampler]) -> Iterator[None]:
    """Have accelerate share out a sampler's batches by what `make_sampler` makes of it."""
    data_loader = sys.modules["accelerate.data_loader"]
    original: Any = getattr(data_loader, "BatchSamplerShard", None)
    known = original is not None and list(inspect.signature(original).parameters) == _SHARD
    check_known(data_loader, known, ACCELERATE)

    def shard(batch_sampler: Any, **options: Any) -> Any:
        usual = options["even_batches"] and not options["split_batches"]
        return make_sampler(batch_sampler) if usual else original(batch_sampler, **options)

    vars(data_loader)["BatchSamplerShard"] = shard
    try:
        yield
    finally:
        vars(data_loader)["BatchSamplerShard"] = original
