"""Resume a training after a restart; on another number of ranks, keep the number of samples in a step.

Trainer counts steps. With fewer ranks a step would have fewer samples, so the same step would be at another position in
the data, and the learning rate would follow another schedule over the samples. Here a step keeps its number of samples,
in equal shares of the ranks if possible, otherwise in unequal ones (uneven_shares.py).
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpudist.checkpoints import manifest
from cpudist.checkpoints.runs import say_from_the_beginning
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface.restart_point import STATE, damage, is_of_run, newest_of_run, number_training
from cpudist.huggingface.uneven_shares import BatchGeometry, SharedSampler, Shares
from cpudist.patching.undo import replaced

if TYPE_CHECKING:
    from cpudist.huggingface import Context

_BY_LENGTH = ("group_by_length", "batch_rebalance")
_numbers = itertools.count()  # numbers trainings with unequal shares, alike on all ranks


def train(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Trainer.train`: resume a restarted run from its newest checkpoint; keep the samples per step."""
    module: Any = sys.modules["transformers.trainer"]

    @functools.wraps(original)
    def train_to_the_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = train_on(self, *args, **kwargs)
        context.background.wait()  # until all checkpoints are complete
        return output

    def train_on(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        trial = kwargs.get("trial", args[0] if args else None)
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = module.get_last_checkpoint(self.args.output_dir)
        number = number_training(self.args.output_dir)
        context.trainings[self] = {**asdict(_as_asked_for(self)), "training": number}
        if checkpoint is None and trial is None:  # the script gives no checkpoint
            folder = Path(self.args.output_dir)
            checkpoint = resume_from_checkpoint = newest_of_run(context.job, folder, number)
            if checkpoint is None:
                say_from_the_beginning(context.job, folder)
        elif checkpoint and (problem := damage(Path(checkpoint))) is not None and self.args.process_index == 0:
            say(f"warning: {checkpoint} is damaged: {problem}")  # the script's own choice is loaded anyway
        if checkpoint and is_of_run(context.job, Path(checkpoint)) and _is_finished(Path(checkpoint)):
            # Return no batches; otherwise a training that resumes at --max_steps inside an epoch makes one extra step.
            with replaced(self, get_batch_samples=lambda *args, **kwargs: ([], None)):
                return original(self, resume_from_checkpoint, *args, **kwargs)
        saved = _saved_geometry(Path(checkpoint)) if checkpoint else None
        balances = _balances(self, context)
        with ExitStack() as changed:
            if saved is None or saved.world_size == self.args.world_size:
                shares = _shares(self, _as_asked_for(self)) if balances else None
            else:
                context.trainings[self] |= asdict(saved)
                shares = _keep_steps(self, saved, checkpoint, balances)
                changed.enter_context(_loading_batch_size(module.TrainerState, self._train_batch_size))
            if shares is not None:
                changed.enter_context(_sharing(self, shares, context))
            return original(self, resume_from_checkpoint, *args, **kwargs)

    return train_to_the_end


def _balances(trainer: Any, context: Context) -> bool:
    """Return whether the shares of `trainer` follow the speeds of the ranks."""
    if not context.job.balance.follows_speeds or trainer.args.world_size == 1:
        return False
    why = _why_not_unequal(trainer, _as_asked_for(trainer).samples_per_step)
    if why is not None and trainer.args.process_index == 0:
        say(f"warning: --balance changes nothing in this training: {why}")
    return why is None


def _shares(trainer: Any, geometry: BatchGeometry) -> Shares:
    args = trainer.args
    return Shares(geometry, args.world_size, trainer._train_batch_size, args.dataloader_drop_last)


def _is_finished(checkpoint: Path) -> bool:
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return bool(0 < state.get("max_steps", 0) <= state["global_step"])


def _as_asked_for(trainer: Any) -> BatchGeometry:
    args = trainer.args
    batch = trainer._train_batch_size * args.world_size
    return BatchGeometry(args.world_size, batch * args.gradient_accumulation_steps, batch)


def _saved_geometry(checkpoint: Path) -> BatchGeometry | None:
    """Return a checkpoint's original batch geometry; None if it has no manifest of cpudist, or a damaged one."""
    said = manifest.read(checkpoint)
    if said is None or not said.trainer:
        return None
    return BatchGeometry(**{size.name: said.trainer[size.name] for size in fields(BatchGeometry)})


def _keep_steps(trainer: Any, geometry: BatchGeometry, checkpoint: str, balances: bool) -> Shares | None:
    """Set batch size and accumulation to keep the samples per step; return the shares if they may be unequal."""
    args, ranks, size = trainer.args, trainer.args.world_size, trainer._train_batch_size
    samples, began, shares = geometry.samples_per_step, geometry.world_size, None
    found = f"{checkpoint} has {samples} samples in a step, as on the {began} ranks on which it was begun"
    if getattr(args, "group_by_length", False) or getattr(args, "train_sampling_strategy", "") in _BY_LENGTH:
        raise UserError(f"{found}; grouped by length, samples come in another order on {ranks} ranks: start {began}")
    equal, more = divmod(samples, ranks)
    asked_for = _as_asked_for(trainer).samples_per_step
    if not more and samples != asked_for:
        size = next(size for size in range(min(size, equal), 0, -1) if equal % size == 0)
    unequal = more or _leaves_out_others(trainer, geometry, ranks * size)
    if unequal or balances:
        why = _why_not_unequal(trainer, samples)
        if why is not None and unequal:
            dividing = (number for number in range(1, ranks) if samples % number == 0)
            fitting = max(dividing) if more else began
            raise UserError(f"{found}; {ranks} ranks can have neither equal nor unequal shares: {why}; start {fitting}")
        if why is None:
            shares = _shares(trainer, geometry)
            size = shares.batch_size
    if shares is None and samples == asked_for:
        return None
    trainer._train_batch_size = args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = equal // size if shares is None else shares.accumulation
    if args.process_index == 0:
        each = f", {equal} or {equal + 1} each" if more else ""
        batches = f"--gradient_accumulation_steps {args.gradient_accumulation_steps}"
        say(f"{found}; keeping {samples} on {ranks} ranks{each}: --per_device_train_batch_size {size} {batches}")
    return shares


def _leaves_out_others(trainer: Any, geometry: BatchGeometry, batch: int) -> bool:
    """Return whether --dataloader_drop_last drops other samples than before if all ranks compute `batch` at once."""
    data, batches = trainer.train_dataset, {geometry.samples_per_batch, batch}
    if hasattr(data, "__len__"):
        batches = {len(data) % batch for batch in batches}
    return trainer.args.dataloader_drop_last and len(batches) > 1


def _why_not_unequal(trainer: Any, samples: int) -> str | None:
    """Return why `trainer` cannot compute a step of `samples` in unequal shares; None if it can."""
    args, usual = trainer.args, sys.modules["transformers.trainer"].Trainer
    for name in ("compute_loss", "training_step"):
        if getattr(type(trainer), name) is not getattr(usual, name):
            return f"{type(trainer).__name__}.{name} does not weight unequal shares"
    if not args.average_tokens_across_devices:
        return "--average_tokens_across_devices is false"
    if not hasattr(trainer.train_dataset, "__len__"):
        return "the data set has no length"
    if args.world_size == 1:
        return "--dataloader_drop_last would leave out other samples at the end of an epoch"
    return f"a step has only {samples} samples" if samples < args.world_size else None


def _loading_batch_size(cls: Any, batch_size: int) -> AbstractContextManager[None]:
    """Set the batch size in loaded states: transformers 4 reads it from the state, not from the arguments."""
    load = vars(cls)["load_from_json"]

    def load_from_json(cls: Any, json_path: str) -> Any:
        state = load.__func__(cls, json_path)
        state.train_batch_size = batch_size
        return state

    return replaced(cls, load_from_json=classmethod(load_from_json))


@contextmanager
def _sharing(trainer: Any, shares: Shares, context: Context) -> Iterator[None]:
    """Make `trainer` use its rank's batches of `shares`, and put each step's batch weights into the context."""
    load, collect = trainer.get_train_dataloader, trainer.get_batch_samples
    data_loader = sys.modules["accelerate.data_loader"]
    shard: Any = vars(data_loader)["BatchSamplerShard"]
    sampler: SharedSampler | None = None
    epoch: Any = None
    step = 0
    balance, number = context.job.balance, f"trainer {next(_numbers)}"
    balance.per_step, balance.least = shares.geometry.samples_per_step, shares.accumulation

    def make_sampler(batch_sampler: Any, **options: Any) -> Any:
        nonlocal sampler
        if not options["even_batches"] or options["split_batches"]:
            return shard(batch_sampler, **options)
        agreed = functools.partial(balance.agreed, number)
        sampler = SharedSampler(batch_sampler, shares, trainer.args.process_index, agreed)
        return sampler

    def get_train_dataloader() -> Any:
        with replaced(data_loader, BatchSamplerShard=make_sampler):
            loader = load()
        if sampler is None:
            ranks, samples, began = shares.ranks, shares.geometry.samples_per_step, shares.geometry.world_size
            remedy = "leave --balance out" if ranks == began else f"start {began} ranks"
            why = f"{ranks} ranks cannot have unequal shares of {samples} samples in a step"
            raise UserError(f"{why}, since this script divides its data among the ranks itself; {remedy}")
        return loader

    def get_batch_samples(epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal epoch, step
        assert sampler is not None
        if epoch_iterator is not epoch:  # a resumed first epoch begins at the checkpoint's step
            resumed = epoch is None and not trainer.args.ignore_data_skip
            epoch, step = epoch_iterator, trainer.state.global_step if resumed else 0
        found = collect(epoch_iterator, *args, **kwargs)
        # After a resumed epoch, transformers 4 requests as many extra steps as it has skipped; they have no batches.
        batches = sampler.take(step) if found[0] else []
        context.weights[trainer] = iter([weight for _, weight in batches])
        balance.computed += sum(size for size, _ in batches)
        step += 1
        return found

    def get_total_train_batch_size(args: Any) -> int:
        return shares.geometry.samples_per_step

    own = (get_train_dataloader, get_batch_samples, get_total_train_batch_size)
    try:
        with replaced(trainer, **{method.__name__: method for method in own}):
            yield
    finally:
        context.weights.pop(trainer, None)
