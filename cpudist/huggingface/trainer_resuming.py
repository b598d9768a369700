"""A training that Trainer resumes on another number of ranks goes on with the same steps.

Trainer counts steps. With fewer ranks a step has fewer samples, so that the same step would be another place in the
data and the learning-rate schedule would end too early: here a step keeps the samples that it was begun with, in equal
shares if ranks can have them, else in unequal ones (shares.py).
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface import checkpoint_files
from cpudist.huggingface.shares import Begun, Shares
from cpudist.huggingface.trainer_loss import WeightsByTrainer
from cpudist.huggingface.trainer_sharing import sharing
from cpudist.huggingface.versions import TRANSFORMERS, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

# The trainings that there are, by their Trainers.
BegunByTrainer: TypeAlias = "WeakKeyDictionary[Any, Begun]"

_TRAIN = ["self", "resume_from_checkpoint"]
_COLLECT = ["self", "epoch_iterator", "num_batches"]
_BY_LENGTH = ("group_by_length", "batch_rebalance")


def patch(trainer_module: ModuleType, job: Job, begun: BegunByTrainer, weights: WeightsByTrainer) -> None:
    """Change `transformers.Trainer`: how it resumes."""
    cls = trainer_module.Trainer
    train: Any = getattr(cls, "train", None)
    collect: Any = getattr(cls, "get_batch_samples", None)
    known = (
        collect is not None
        and list(inspect.signature(collect).parameters)[:3] == _COLLECT
        and list(inspect.signature(train).parameters)[:2] == _TRAIN
        and all(hasattr(cls, name) for name in ("get_train_dataloader", "get_total_train_batch_size"))
    )
    check_known(trainer_module, known, TRANSFORMERS)

    @functools.wraps(train)
    def train_on(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = trainer_module.get_last_checkpoint(self.args.output_dir)
        begun[self] = _as_asked_for(self)
        before = _begun(Path(checkpoint)) if checkpoint else None
        if before is None or before.world_size == self.args.world_size:
            return train(self, resume_from_checkpoint, *args, **kwargs)
        begun[self] = before
        shares = _keep_steps(self, cls, before, f"{checkpoint} has {before.samples_per_step} samples in a step")
        unequal = nullcontext() if shares is None else sharing(self, shares, weights)
        with _states_name(trainer_module.TrainerState, self._train_batch_size), unequal:
            return train(self, resume_from_checkpoint, *args, **kwargs)

    job.changes.attribute(cls, "train", train_on)


def _as_asked_for(trainer: Any) -> Begun:
    args = trainer.args
    batch = trainer._train_batch_size * args.world_size
    return Begun(args.world_size, batch * args.gradient_accumulation_steps, batch)


def _begun(checkpoint: Path) -> Begun | None:
    """How the training of `checkpoint` was begun; None if it was saved without cpudist."""
    file = checkpoint / checkpoint_files.WORLD
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    return Begun(found["world_size"], found["samples_per_step"], found["samples_per_batch"])


def _keep_steps(trainer: Any, cls: Any, begun: Begun, found: str) -> Shares | None:
    """Choose batch size and accumulation so that steps have the samples that they were begun with, and say so.

    Returns what ranks compute if their shares are unequal.

    Args:
        cls: transformers' own Trainer.
        found: what there is to go on from, for messages.

    Raises:
        UserError: there is no such choice.
    """
    args, ranks, size = trainer.args, trainer.args.world_size, trainer._train_batch_size
    samples, shares = begun.samples_per_step, None
    found = f"{found}, as on the {begun.world_size} ranks that it was begun with"
    if getattr(args, "group_by_length", False) or getattr(args, "train_sampling_strategy", "") in _BY_LENGTH:
        raise UserError(f"{found}; grouped by length, they come in another order on {ranks}: start as many ranks")
    equal, more = divmod(samples, ranks)
    asked_for = _as_asked_for(trainer).samples_per_step
    if not more and samples != asked_for:
        size = next(size for size in range(min(size, equal), 0, -1) if equal % size == 0)
    if more or _leaves_out_others(trainer, begun, ranks * size):
        why = _why_not_unequal(trainer, cls, samples)
        if why is not None:
            fitting = max(number for number in range(1, ranks) if samples % number == 0) if more else begun.world_size
            raise UserError(f"{found}; {ranks} cannot have equal shares, nor unequal ones: {why}; start {fitting}")
        shares = Shares(begun, ranks, trainer._train_batch_size, args.dataloader_drop_last)
        size = shares.batch_size
    elif samples == asked_for:
        return None
    trainer._train_batch_size = args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = equal // size if shares is None else shares.accumulation
    if args.process_index == 0:
        each = f", {equal} or {equal + 1} each" if more else ""
        say(
            f"{found}; going on with as many at {ranks}{each}: --per_device_train_batch_size {size} "
            f"--gradient_accumulation_steps {args.gradient_accumulation_steps}"
        )
    return shares


def _leaves_out_others(trainer: Any, begun: Begun, batch: int) -> bool:
    """Whether --dataloader_drop_last leaves out other samples where all ranks have `batch` at once."""
    data, batches = trainer.train_dataset, {begun.samples_per_batch, batch}
    if hasattr(data, "__len__"):
        batches = {len(data) % batch for batch in batches}
    return trainer.args.dataloader_drop_last and len(batches) > 1


def _why_not_unequal(trainer: Any, cls: Any, samples: int) -> str | None:
    """Why `trainer` cannot compute a step of so many samples in unequal shares; None if it can."""
    args = trainer.args
    for name in ("compute_loss", "training_step"):
        if getattr(type(trainer), name) is not getattr(cls, name):
            return f"{type(trainer).__name__}.{name} would not weigh them"
    if not args.average_tokens_across_devices:
        return "--average_tokens_across_devices is false"
    if not hasattr(trainer.train_dataset, "__len__"):
        return "the data set has no length"
    if args.world_size == 1:
        return "--dataloader_drop_last would leave out others at the end of an epoch"
    return f"they are only {samples}" if samples < args.world_size else None


@contextmanager
def _states_name(cls: Any, batch_size: int) -> Iterator[None]:
    """States that are read name `batch_size`: transformers 4 takes the saved one, whatever the arguments say."""
    load = vars(cls)["load_from_json"]

    def load_from_json(cls: Any, json_path: str) -> Any:
        state = load.__func__(cls, json_path)
        state.train_batch_size = batch_size
        return state

    cls.load_from_json = classmethod(load_from_json)
    try:
        yield
    finally:
        cls.load_from_json = load
