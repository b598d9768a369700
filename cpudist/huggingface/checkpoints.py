"""Trainer's checkpoints: each is complete or absent, and says how its training was begun.

Trainer (4.57 and 5.x) writes straight into `checkpoint-N`, and resumes from the highest N whatever it finds there. Here
every rank writes into a folder beside it, all ranks wait for each other, and a rename publishes the checkpoint
(checkpoints/folders.py). Older ones are deleted only after that. With `--async-checkpoint` Trainer saves large files in
memory, and a thread does the rest while the training goes on.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from cpudist.checkpoints import folders
from cpudist.errors import UserError
from cpudist.huggingface import checkpoint_files
from cpudist.huggingface.deferred_files import DeferredFiles
from cpudist.optimization import local_steps

if TYPE_CHECKING:
    from cpudist.huggingface import Context
    from cpudist.job import Job

_SHUTIL = SimpleNamespace(**{**vars(shutil), "rmtree": folders.delete})


def replace_shutil(original: Any, context: Context) -> Any:
    """Replace `shutil` in a module of transformers: deleting a checkpoint renames it first."""
    return _SHUTIL


def save_checkpoint(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._save_checkpoint`: a checkpoint appears under its name once it is complete."""
    job, background = context.job, context.background
    cleared: set[Path] = set()  # folders without leftovers of jobs that were killed
    saved: list[Path] = []  # by this process, in this order

    @functools.wraps(original)
    def save(self: Any, model: Any, trial: Any) -> None:
        background.wait()
        run_dir = Path(self._get_output_dir(trial=trial))
        if self.args.should_save and run_dir not in cleared:
            folders.clear(run_dir)
        cleared.add(run_dir)
        if (local := local_steps.of(self.model)) is not None:
            local.settle()
        made = {**asdict(context.geometries[self]), "runs": job.run_ids, "training": context.trainings[self]}
        # Trainer waits for the last checkpoint of a training, and for one that is to be uploaded.
        later = job.async_checkpoint and not (self.control.should_training_stop or self.args.push_to_hub)
        files = DeferredFiles()
        with files.collect() if later else nullcontext():
            written = _write_aside(self, run_dir, job, made, lambda: original(self, model, trial))
        checkpoint = _Checkpoint(job, self.args, run_dir, written, files, self.state.best_model_checkpoint, saved)
        if later:
            ranks = background.ranks()
            background.start(lambda: checkpoint.complete(lambda: ranks.all_gather(None)))
            return
        checkpoint.complete(self.accelerator.wait_for_everyone)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(run_dir / written.name))

    return save


def load_optimizer(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._load_optimizer_and_scheduler`: local steps go on, too."""

    @functools.wraps(original)
    def load(self: Any, checkpoint: Any) -> None:
        original(self, checkpoint)
        local = local_steps.of(self.model)
        if local is not None and checkpoint and (path := Path(checkpoint) / checkpoint_files.OUTER).is_file():
            local.load_state_dict(torch.load(path, weights_only=True))

    return load


def load_best_model(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._load_best_model`: wait until the best checkpoint is complete."""

    @functools.wraps(original)
    def load(self: Any) -> None:
        context.background.wait()
        original(self)

    return load


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that Trainer has saved aside.

    Attributes:
        job: the running job.
        args: the TrainingArguments.
        run_dir: where it is to appear.
        written: the folder that Trainer has saved into.
        files: those that are not written yet.
        best: the best checkpoint so far, which stays.
        saved: the checkpoints that this process has saved, in this order.
    """

    job: Job
    args: Any
    run_dir: Path
    written: Path
    files: DeferredFiles
    best: str | None
    saved: list[Path]

    def complete(self, wait: Callable[[], object]) -> None:
        """Write the rest, publish the checkpoint when all of it is on the disk, and delete the oldest ones.

        Args:
            wait: waits for all ranks.
        """
        with self._refusing_full_disk():
            self.files.write()
        wait()  # until every rank has written its part
        with self._refusing_full_disk():
            if self.args.should_save:
                checkpoint_files.adopt(self.run_dir / self.written.name, self.written)
            if self.job.world.local_rank == 0 and self.written.is_dir():  # only the host that wrote it can sync it
                folders.sync(self.written)
        wait()
        if self.args.should_save:
            with self._refusing_full_disk():
                folders.publish(self.written, self.run_dir)
        wait()  # a rank that goes on may end the job, so the checkpoint must be there
        target = self.run_dir / self.written.name
        self.saved[:] = [*(path for path in self.saved if path != target), target]
        if self.args.should_save and (self.args.save_total_limit or 0) > 0:
            best = Path(self.best) if self.best else None
            folders.rotate(folders.numbered(self.run_dir).values(), self.args.save_total_limit, self.saved, best)

    def _refusing_full_disk(self) -> AbstractContextManager[None]:
        return _refusing_full_disk(self.run_dir, self.written.name, self.job)


def _write_aside(trainer: Any, run_dir: Path, job: Job, made: dict[str, Any], save: Callable[[], None]) -> Path:
    """Have `save` write a checkpoint aside on every rank; return its folder. `made` is for `checkpoint_files.WORLD`."""
    folder = run_dir / folders.INCOMPLETE / _name_of(job)
    trainer.accelerator.wait_for_everyone()  # until leftovers are cleared: nobody may write there before
    name = f"{folders.PREFIX}{trainer.state.global_step}"
    with _refusing_full_disk(run_dir, name, job), _writing_to(trainer, folder):
        save()
        _name_the_best(trainer, run_dir, folder / name)
        if trainer.args.should_save:
            if (local := local_steps.of(trainer.model)) is not None:
                torch.save(local.state_dict(), folder / name / checkpoint_files.OUTER)
            (folder / name / checkpoint_files.WORLD).write_text(json.dumps(made) + "\n", encoding="utf-8")
    return folder / name


def _name_of(job: Job) -> str:
    """Return a name, the same on all ranks, that neither another job has nor an earlier attempt at this one.

    A host that was frozen during an earlier attempt may go on writing.
    """
    name = bytes(job.store.compare_set("cpudist/checkpoints", "", secrets.token_hex(8))).decode(errors="replace")
    if not re.fullmatch(r"[0-9a-f]{16}", name):  # it becomes part of a path
        raise UserError(f"the job's store names a checkpoint {name!r}: a stranger writes there; see docs/security.md")
    return name


@contextmanager
def _writing_to(trainer: Any, folder: Path) -> Iterator[None]:
    """Have the trainer save into `folder` and upload nothing while the block runs."""
    vars(trainer)["_get_output_dir"] = lambda trial: str(folder)
    vars(trainer)["_push_from_checkpoint"] = lambda checkpoint_folder: None
    try:
        yield
    finally:
        del trainer._get_output_dir, trainer._push_from_checkpoint


def _name_the_best(trainer: Any, run_dir: Path, written: Path) -> None:
    """Correct the path of the best checkpoint in the state: Trainer has looked for it beside `written`."""
    state = trainer.state
    if not state.best_global_step:
        return
    name = f"checkpoint-{state.best_global_step}"
    if name == written.name or (run_dir / name).exists():
        state.best_model_checkpoint = os.path.join(run_dir, name)
    if trainer.args.should_save:
        state.save_to_json(str(written / "trainer_state.json"))


@contextmanager
def _refusing_full_disk(run_dir: Path, name: str, job: Job) -> Iterator[None]:
    """Raise `UserError` where a part of the checkpoint `name` cannot be saved because the disk is full.

    Not for use around waits for other ranks: where a file system hangs, writing a probe to it hangs too.
    """
    try:
        yield
    except Exception as error:
        full = folders.why_full(error, run_dir)
        if full is None:
            raise
        raise _no_space(run_dir, name, job, full) from error


def _no_space(run_dir: Path, name: str, job: Job, full: str) -> UserError:
    folders.clear(run_dir)  # makes room for the run record
    host, complete = job.world.hosts[job.world.node_rank], list(checkpoint_files.checkpoints(run_dir).values())
    kept = f"{complete[-1]} is complete" if complete else "there is no earlier one"
    return UserError(
        f"rank {job.world.rank} on {host} cannot save {name}: {full}; {kept}; "
        f"make room, or give --save_total_limit or another --output_dir"
    )
