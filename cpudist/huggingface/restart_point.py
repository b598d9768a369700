"""Trainer's checkpoints: their files, and the one that a restarted run goes on from, the same on every rank."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from cpudist.checkpoints import manifest, runs
from cpudist.checkpoints.folders import numbered, restore
from cpudist.checkpoints.publishing import Ranks
from cpudist.console import say
from cpudist.job import current

if TYPE_CHECKING:
    from cpudist.job import Job

STATE = "trainer_state.json"  # the last file that an unpatched Trainer writes
_SENTINEL = "checkpoint-is-incomplete.txt"  # transformers 5 leaves it while it saves on SIGTERM

# Of each output folder, in this process. A script may train several times, and a restart does so in the same order.
_trainings: Counter[str] = Counter()

_SHARED = "put --output_dir on a disk that all hosts share, or train with --save_on_each_node"


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by their steps, the newest last."""
    found = numbered(folder).items()
    return {step: path for step, path in found if (path / STATE).is_file() and not (path / _SENTINEL).exists()}


def adopt(folder: Path, written: Path) -> None:
    """Move files into `written` that a class derived from Trainer has saved straight into `folder`.

    If `folder` has a state, it is a checkpoint of an earlier run, and stays as it is.
    """
    if folder.is_dir() and not (folder / STATE).exists():
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                    path.rename(written / path.name)


def number_training(folder: str) -> int:
    """Return the number of a training that begins, among this process's trainings with the same output folder."""
    _trainings[os.path.abspath(folder)] += 1
    return _trainings[os.path.abspath(folder)] - 1


def newest_of_run(job: Job, folder: Path, training: int) -> str | None:
    """Return the newest complete checkpoint in `folder` that this run has saved, and announce it; every rank calls it.

    Returns:
        The checkpoint; None where no earlier attempt at this run has saved one, and with `--resume never`.

    Raises:
        UserError: ranks see checkpoints of this run, but none in common, or all are damaged.
    """
    restore(folder)
    if not job.options.resumes or not job.earlier_run_ids:
        return None

    def is_own(checkpoint: Path) -> bool:
        said = manifest.read(checkpoint)
        return runs.may_be_of_run(job, said) and (said is None or said.trainer.get("training", 0) == training)

    own = {step: path for step, path in checkpoints(folder).items() if is_own(path)}
    newest = runs.newest_whole(own, folder, _SHARED, damage)
    if newest is None:
        return None
    if job.world.rank == 0:
        say(f"{runs.started_again(job)}: going on from {newest}")
    return str(newest)


def is_of_run(job: Job, checkpoint: Path) -> bool:
    """Return whether an earlier attempt at this run has saved `checkpoint`."""
    said = manifest.read(checkpoint)
    return said is not None and runs.may_be_of_run(job, said)


def damage(checkpoint: Path) -> str | None:
    """Return the fault in the files of a checkpoint, in words; None where there is none. Every rank calls it.

    Each host reads all files, shared by its ranks: with --save_on_each_node it has its own.
    """
    job = current()
    part, parts = (0, 1) if job is None else (job.world.local_rank, job.world.local_size)
    return next(filter(None, Ranks().each(lambda: manifest.damage(checkpoint, part, parts))), None)
