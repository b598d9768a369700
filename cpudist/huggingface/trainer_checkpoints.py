"""Trainer's checkpoints appear as a whole or not at all, and say how their training was begun.

Trainer (4.57 and 5.x) writes straight into `checkpoint-N`, and resumes from the highest N whatever it finds there: one
that was killed while it was saving cannot be resumed. Here it writes aside, all ranks wait for each other, and a rename
brings the checkpoint out (checkpoint_files.py). Only then are older ones deleted.
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
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from cpudist.errors import UserError
from cpudist.huggingface import checkpoint_files
from cpudist.huggingface.shares import Begun
from cpudist.huggingface.trainer_resuming import BegunByTrainer
from cpudist.huggingface.versions import TRANSFORMERS, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

_SAVE_CHECKPOINT = ["self", "model", "trial"]
_SHUTIL = SimpleNamespace(**{**vars(shutil), "rmtree": checkpoint_files.delete})  # none is left half deleted


def patch(trainer_module: ModuleType, job: Job, begun: BegunByTrainer) -> None:
    """Change `transformers.Trainer`: how it saves a checkpoint of a training, as `begun`, and how it deletes one."""
    cls = trainer_module.Trainer
    save: Any = getattr(cls, "_save_checkpoint", None)
    rotate: Any = getattr(cls, "_rotate_checkpoints", None) or getattr(trainer_module, "rotate_checkpoints", None)
    deleting = {trainer_module, sys.modules.get(getattr(rotate, "__module__", ""))}
    known = (
        save is not None
        and list(inspect.signature(save).parameters) == _SAVE_CHECKPOINT
        and all(hasattr(cls, name) for name in ("_get_output_dir", "_push_from_checkpoint"))
        and all(getattr(module, "shutil", None) is shutil for module in deleting)
    )
    check_known(trainer_module, known, TRANSFORMERS)
    cleared: set[Path] = set()  # what jobs that were killed have left in these folders is gone

    @functools.wraps(save)
    def save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        if self.args.should_save and run_dir not in cleared:
            checkpoint_files.clear(run_dir)
        cleared.add(run_dir)
        complete = _save_as_a_whole(self, run_dir, job, begun[self], lambda: save(self, model, trial))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(complete))
        if self.args.should_save:
            _rotate(self, trainer_module, str(run_dir))

    job.changes.attribute(cls, "_save_checkpoint", save_checkpoint)
    for module in deleting:
        job.changes.attribute(module, "shutil", _SHUTIL)


def _save_as_a_whole(trainer: Any, run_dir: Path, job: Job, begun: Begun, save: Callable[[], None]) -> Path:
    """Have `save` write a checkpoint aside on every rank, and bring it out once all of it is on the disk."""
    saves, wait = trainer.args.should_save, trainer.accelerator.wait_for_everyone
    folder = run_dir / checkpoint_files.INCOMPLETE / _name_of(job)
    wait()  # nobody writes what would be cleared
    with _refusing_full_disk(trainer, run_dir, job), _writing_to(trainer, folder) as written:
        save()
        _name_the_best(trainer, run_dir, written)
        if saves:
            made = {**asdict(begun), "run": checkpoint_files.run_of(Path(trainer.args.output_dir))}
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
