"""Trainer's checkpoints: each is complete or absent, and says how its training was begun.

Trainer (4.57 and 5.x) writes straight into `checkpoint-N`, and resumes from the highest N whatever it finds there. Here
every rank writes into a folder beside it, all ranks wait for each other, and a rename publishes the checkpoint
(checkpoints/folders.py). Older ones are deleted only after that.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cpudist.checkpoints import folders
from cpudist.errors import UserError
from cpudist.huggingface import checkpoint_files

if TYPE_CHECKING:
    from cpudist.huggingface import Context
    from cpudist.job import Job

_SHUTIL = SimpleNamespace(**{**vars(shutil), "rmtree": folders.delete})


def replace_shutil(original: Any, context: Context) -> Any:
    """Replace `shutil` in a module of transformers: deleting a checkpoint renames it first."""
    return _SHUTIL


def save_checkpoint(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._save_checkpoint`: a checkpoint appears under its name once it is complete."""
    job = context.job
    cleared: set[Path] = set()  # folders without leftovers of jobs that were killed
    saved: list[Path] = []  # by this process, in this order

    @functools.wraps(original)
    def save(self: Any, model: Any, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        if self.args.should_save and run_dir not in cleared:
            folders.clear(run_dir)
        cleared.add(run_dir)
        made = {**asdict(context.geometries[self]), "runs": job.run_ids, "training": context.trainings[self]}
        complete = _save_complete(self, run_dir, job, made, lambda: original(self, model, trial))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(complete))
        saved[:] = [*(path for path in saved if path != complete), complete]
        if self.args.should_save and (self.args.save_total_limit or 0) > 0:
            best = self.state.best_model_checkpoint
            found = folders.numbered(run_dir).values()
            folders.rotate(found, self.args.save_total_limit, saved, best and Path(best))

    return save


def _save_complete(trainer: Any, run_dir: Path, job: Job, made: dict[str, Any], save: Callable[[], None]) -> Path:
    """Have `save` write a checkpoint aside on every rank, and publish it when all of it is on the disk.

    Returns its folder; `made` is for `checkpoint_files.WORLD`.
    """
    saves, wait = trainer.args.should_save, trainer.accelerator.wait_for_everyone
    folder = run_dir / folders.INCOMPLETE / _name_of(job)
    wait()  # until leftovers are cleared: nobody may write there before
    with _refusing_full_disk(trainer, run_dir, job), _writing_to(trainer, folder) as written:
        save()
        _name_the_best(trainer, run_dir, written)
        if saves:
            (written / checkpoint_files.WORLD).write_text(json.dumps(made) + "\n", encoding="utf-8")
    wait()  # until every rank has written its part
    with _refusing_full_disk(trainer, run_dir, job):
        if saves:
            checkpoint_files.adopt(run_dir / written.name, written)
        if job.world.local_rank == 0 and written.is_dir():  # only the host that wrote it can send it to the disk
            folders.sync(written)
    wait()
    if saves:
        with _refusing_full_disk(trainer, run_dir, job):
            folders.publish(written, run_dir)
    wait()  # a rank that goes on may end the job, so the checkpoint must be there
    return run_dir / written.name


def _name_of(job: Job) -> str:
    """Return a name, the same on all ranks, that neither another job has nor an earlier attempt at this one.

    A host that was frozen during an earlier attempt may go on writing.
    """
    return bytes(job.store.compare_set("cpudist/checkpoints", "", secrets.token_hex(8))).decode()


@contextmanager
def _writing_to(trainer: Any, folder: Path) -> Iterator[Path]:
    """Have the trainer save into `folder` and upload nothing; yields where its checkpoint is then."""
    vars(trainer)["_get_output_dir"] = lambda trial: str(folder)
    vars(trainer)["_push_from_checkpoint"] = lambda checkpoint_folder: None
    try:
        yield folder / f"checkpoint-{trainer.state.global_step}"
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
def _refusing_full_disk(trainer: Any, run_dir: Path, job: Job) -> Iterator[None]:
    """Raise `UserError` where a part of a checkpoint cannot be saved because the disk is full.

    Not for use around `wait`: where a file system hangs, writing a probe to it hangs too.
    """
    try:
        yield
    except Exception as error:
        full = folders.why_full(error, run_dir)
        if full is None:
            raise
        raise _no_space(trainer, run_dir, job, full) from error


def _no_space(trainer: Any, run_dir: Path, job: Job, full: str) -> UserError:
    folders.clear(run_dir)  # makes room for the run record
    host, complete = job.world.hosts[job.world.node_rank], list(checkpoint_files.checkpoints(run_dir).values())
    kept = f"{complete[-1]} is complete" if complete else "there is no earlier one"
    return UserError(
        f"rank {job.world.rank} on {host} cannot save checkpoint-{trainer.state.global_step}: {full}; {kept}; "
        f"make room, or give --save_total_limit or another --output_dir"
    )
