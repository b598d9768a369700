"""Trainer's checkpoints appear as a whole or not at all, and mean the same samples on another number of ranks.

Trainer (4.57 and 5.x) writes straight into `checkpoint-N`, and resumes from the highest N whatever it finds there: one
that was killed while it was saving cannot be resumed. Here it writes aside, all ranks wait for each other, and a rename
brings the checkpoint out (checkpoint_files.py). Only then are older ones deleted.

Trainer counts steps. With fewer ranks a step has fewer samples, so that the same step would be another place in the
data and the learning-rate schedule would end too early: a resumed training keeps the number of samples in a step.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface import checkpoint_files
from cpudist.huggingface.versions import TRANSFORMERS, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

_SAVE_CHECKPOINT = ["self", "model", "trial"]
_TRAIN = ["self", "resume_from_checkpoint"]
_BY_LENGTH = ("group_by_length", "batch_rebalance")
_SHUTIL = SimpleNamespace(**{**vars(shutil), "rmtree": checkpoint_files.delete})  # none is left half deleted


def patch(trainer_module: ModuleType, job: Job) -> None:
    """Change `transformers.Trainer`: how it saves a checkpoint, how it deletes one, and how it resumes from one."""
    cls = trainer_module.Trainer
    save: Any = getattr(cls, "_save_checkpoint", None)
    train: Any = getattr(cls, "train", None)
    rotate: Any = getattr(cls, "_rotate_checkpoints", None) or getattr(trainer_module, "rotate_checkpoints", None)
    deleting = {trainer_module, sys.modules.get(getattr(rotate, "__module__", ""))}
    known = (
        save is not None
        and list(inspect.signature(save).parameters) == _SAVE_CHECKPOINT
        and list(inspect.signature(train).parameters)[:2] == _TRAIN
        and all(hasattr(cls, name) for name in ("_get_output_dir", "_push_from_checkpoint"))
        and all(getattr(module, "shutil", None) is shutil for module in deleting)
    )
    check_known(trainer_module, known, TRANSFORMERS)
    begun: set[Path] = set()  # what jobs that were killed have left in these folders is gone

    @functools.wraps(save)
    def save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        if self.args.should_save and run_dir not in begun:
            checkpoint_files.clear(run_dir)
        begun.add(run_dir)
        complete = _save_as_a_whole(self, run_dir, job, lambda: save(self, model, trial))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(complete))
        if self.args.should_save:
            _rotate(self, trainer_module, str(run_dir))

    @functools.wraps(train)
    def train_on(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = trainer_module.get_last_checkpoint(self.args.output_dir)
        if not checkpoint or not _keep_samples_per_step(self, Path(checkpoint)):
            return train(self, resume_from_checkpoint, *args, **kwargs)
        with _states_name(trainer_module.TrainerState, self._train_batch_size):
            return train(self, resume_from_checkpoint, *args, **kwargs)

    job.changes.attribute(cls, "_save_checkpoint", save_checkpoint)
    job.changes.attribute(cls, "train", train_on)
    for module in deleting:
        job.changes.attribute(module, "shutil", _SHUTIL)


def _save_as_a_whole(trainer: Any, run_dir: Path, job: Job, save: Callable[[], None]) -> Path:
    """Have `save` write a checkpoint aside on every rank, and bring it out once all of it is on the disk."""
    saves, wait = trainer.args.should_save, trainer.accelerator.wait_for_everyone
    folder = run_dir / checkpoint_files.INCOMPLETE / _name_of(job)
    wait()  # nobody writes what would be cleared
    with _refusing_full_disk(trainer, run_dir, job), _writing_to(trainer, folder) as written:
        save()
        _name_the_best(trainer, run_dir, written)
        if saves:
            made = {**_world(trainer), "run": checkpoint_files.run_of(Path(trainer.args.output_dir))}
            (written / checkpoint_files.WORLD).write_text(json.dumps(made) + "\n", encoding="utf-8")
    wait()  # every rank has written its part
    with _refusing_full_disk(trainer, run_dir, job):
        if saves:
            checkpoint_files.adopt(run_dir / written.name, written)
        if job.world.local_rank == 0 and written.is_dir():  # what a host wrote, only that host can send to the disk
            checkpoint_files.sync(written)
    wait()
    if saves:
        with _refusing_full_disk(trainer, run_dir, job):
            checkpoint_files.publish(written, run_dir)
    wait()  # no rank goes on, and perhaps ends, before the checkpoint is there
    return run_dir / written.name


def _name_of(job: Job) -> str:
    """A name that no other job has, nor an earlier attempt at this one, of which a frozen host may wake up late."""
    return bytes(job.meeting.store.compare_set("cpudist/checkpoints", "", secrets.token_hex(8))).decode()


@contextmanager
def _writing_to(trainer: Any, folder: Path) -> Iterator[Path]:
    """The trainer saves into `folder` instead of its own, and uploads nothing; gives the checkpoint's place there."""
    vars(trainer)["_get_output_dir"] = lambda trial: str(folder)
    vars(trainer)["_push_from_checkpoint"] = lambda checkpoint_folder: None
    try:
        yield folder / f"checkpoint-{trainer.state.global_step}"
    finally:
        del trainer._get_output_dir, trainer._push_from_checkpoint


def _name_the_best(trainer: Any, run_dir: Path, written: Path) -> None:
    """Have the state name the best checkpoint by the place where it is, or will be: Trainer has looked beside this."""
    state = trainer.state
    if not state.best_global_step:
        return
    name = f"checkpoint-{state.best_global_step}"
    if name == written.name or (run_dir / name).exists():
        state.best_model_checkpoint = os.path.join(run_dir, name)
    if trainer.args.should_save:
        state.save_to_json(str(written / "trainer_state.json"))


def _rotate(trainer: Any, trainer_module: ModuleType, run_dir: str) -> None:
    """Delete the checkpoints beyond --save_total_limit."""
    if hasattr(trainer_module, "rotate_checkpoints"):
        trainer_module.rotate_checkpoints(
            output_dir=run_dir,
            save_total_limit=trainer.args.save_total_limit,
            best_model_checkpoint=trainer.state.best_model_checkpoint,
            use_mtime=True,
        )
    else:
        trainer._rotate_checkpoints(use_mtime=True, output_dir=run_dir)


@contextmanager
def _refusing_full_disk(trainer: Any, run_dir: Path, job: Job) -> Iterator[None]:
    """Raise `UserError` where a part of a checkpoint cannot be saved for want of space.

    Not around the waiting for other ranks: where a file system hangs, it must not be asked whether it is full.
    """
    try:
        yield
    except Exception as error:
        full = checkpoint_files.why_full(error, run_dir)
        if full is None:
            raise
        raise _no_space(trainer, run_dir, job, full) from error


def _no_space(trainer: Any, run_dir: Path, job: Job, full: str) -> UserError:
    checkpoint_files.clear(run_dir)  # so that there is space for the record
    host, complete = job.world.hosts[job.world.node_rank], list(checkpoint_files.checkpoints(run_dir).values())
    kept = f"{complete[-1]} is complete" if complete else "there is no earlier one"
    return UserError(
        f"rank {job.world.rank} on {host} cannot save checkpoint-{trainer.state.global_step}: {full}; {kept}; "
        f"make room, or give --save_total_limit or another --output_dir"
    )


def _world(trainer: Any) -> dict[str, int]:
    """How many ranks there are, with how many samples in a step."""
    args = trainer.args
    samples = trainer._train_batch_size * args.gradient_accumulation_steps * args.world_size
    return {"world_size": args.world_size, "samples_per_step": samples}


def _keep_samples_per_step(trainer: Any, checkpoint: Path) -> bool:
    """Choose batch size and accumulation so that a step has as many samples as in `checkpoint`, and say so.

    The steps of the checkpoint then mean the same samples, and what is left of an epoch and of the schedule is right.
    Returns whether the checkpoint's own batch size does not count, since other ranks go on from it.

    Raises:
        UserError: the ranks cannot have equal shares of that many samples.
    """
    if not (checkpoint / checkpoint_files.WORLD).is_file():  # saved without cpudist
        return False
    args, now = trainer.args, _world(trainer)
    then = json.loads((checkpoint / checkpoint_files.WORLD).read_text(encoding="utf-8"))
    samples, ranks = then["samples_per_step"], now["world_size"]
    if then["world_size"] == ranks:
        return False
    made = f"{checkpoint} was made by {then['world_size']} ranks with {samples} samples in a step"
    if getattr(args, "group_by_length", False) or getattr(args, "train_sampling_strategy", "") in _BY_LENGTH:
        raise UserError(f"{made}; grouped by length, the samples come in another order on {ranks}: start as many ranks")
    if samples % ranks:
        fitting = max(number for number in range(1, ranks) if samples % number == 0)
        raise UserError(
            f"{made}, of which {ranks} ranks cannot have equal shares; the next smaller number is {fitting}"
        )
    share, size = samples // ranks, trainer._train_batch_size
    as_asked_for = samples == now["samples_per_step"]
    if not as_asked_for:
        size = next(size for size in range(min(size, share), 0, -1) if share % size == 0)
    if args.dataloader_drop_last:
        batch = then["world_size"] * _batch_size_of(checkpoint)
        if _left_out(trainer, batch) != _left_out(trainer, ranks * size):
            raise UserError(
                f"{made}; with --dataloader_drop_last its epochs, of batches of {batch}, have other samples than those"
                f" of {ranks} ranks, of batches of {ranks * size}: start as many ranks"
            )
    if as_asked_for:
        return True
    trainer._train_batch_size = args.per_device_train_batch_size = size
    args.gradient_accumulation_steps = share // size
    if args.process_index == 0:
        say(
            f"{made}; going on with as many at {ranks}: --per_device_train_batch_size {size} "
            f"--gradient_accumulation_steps {share // size}"
        )
    return True


def _batch_size_of(checkpoint: Path) -> int:
    """How many samples a rank had in a batch."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return int(state["train_batch_size"])


def _left_out(trainer: Any, batch: int) -> int:
    """Of the samples of an epoch those that do not fill a batch of all ranks; where nobody knows, all that may be."""
    data = trainer.train_dataset
    return len(data) % batch if hasattr(data, "__len__") else batch


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
