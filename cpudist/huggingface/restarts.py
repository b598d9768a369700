"""Find the checkpoint of Trainer's that a restarted run goes on from, the same on every rank."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cpudist.checkpoints import runs
from cpudist.checkpoints.folders import restore
from cpudist.checkpoints.runs import common, started_again
from cpudist.console import say
from cpudist.huggingface.checkpoint_files import checkpoints, runs_of, training_of

if TYPE_CHECKING:
    from cpudist.job import Job

# Of each output folder, in this process. A script may train several times, and a restart does so in the same order.
_trainings: Counter[str] = Counter()


def number_training(folder: str) -> int:
    """Return the number of a training that begins, among those of this process with the same output folder."""
    _trainings[os.path.abspath(folder)] += 1
    return _trainings[os.path.abspath(folder)] - 1


def newest_of_run(job: Job, folder: Path, training: int = 0) -> str | None:
    """Return the newest complete checkpoint in `folder` that this run has saved, and announce it; every rank calls it.

    Args:
        job: the running job.
        folder: the output folder.
        training: the number of the training among those of the folder.

    Returns:
        The checkpoint; None where no earlier attempt at this run has saved one, and with `--resume never`.

    Raises:
        UserError: ranks see checkpoints of this run, but none in common.
    """
    restore(folder)
    if not job.resumes or not job.earlier_run_ids:
        return None
    newest = newest_common(
        folder, lambda checkpoint: is_of_run(job, checkpoint) and training_of(checkpoint) == training
    )
    if newest is not None and job.world.rank == 0:
        say(f"{started_again(job)}: going on from {newest}")
    return newest


def is_of_run(job: Job, checkpoint: Path) -> bool:
    """Return whether an earlier attempt at this run has saved `checkpoint`."""
    return runs.is_of_run(job, runs_of(checkpoint))


def newest_common(folder: Path, wanted: Callable[[Path], bool] = lambda checkpoint: True) -> str | None:
    """Return the newest complete checkpoint in `folder` that every rank sees; every rank calls it.

    Args:
        folder: the output folder.
        wanted: which checkpoints count.

    Raises:
        UserError: ranks see checkpoints, but none in common.
    """
    found = {step: path for step, path in checkpoints(folder).items() if wanted(path)}
    remedy = "put --output_dir on a disk that all hosts share, or train with --save_on_each_node"
    newest_first = common(found, folder, remedy)
    return str(newest_first[0]) if newest_first else None
