"""Find the checkpoint of Trainer's that a restarted run goes on from, the same on every rank."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cpudist.checkpoints import runs
from cpudist.checkpoints.folders import restore
from cpudist.checkpoints.rank_group import Ranks
from cpudist.checkpoints.runs import common, started_again
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface.checkpoint_files import checkpoints, damage, read_world
from cpudist.job import current

if TYPE_CHECKING:
    from cpudist.job import Job

# Of each output folder, in this process. A script may train several times, and a restart does so in the same order.
_trainings: Counter[str] = Counter()
# The checkpoints that a job has read whole: a recipe does so before Trainer would do it again.
_whole: WeakKeyDictionary[Job, set[Path]] = WeakKeyDictionary()


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
        UserError: ranks see checkpoints of this run, but none in common, or all are damaged.
    """
    restore(folder)
    if not job.resumes or not job.earlier_run_ids:
        return None

    def is_wanted(checkpoint: Path) -> bool:
        world = read_world(checkpoint)  # damaged, it does not say whose it is
        return world is None or (runs.is_of_run(job, world.get("runs", ())) and world.get("training", 0) == training)

    newest = newest_whole(folder, is_wanted)
    if newest is not None and job.world.rank == 0:
        say(f"{started_again(job)}: going on from {newest}")
    return newest


def is_of_run(job: Job, checkpoint: Path) -> bool:
    """Return whether an earlier attempt at this run has saved `checkpoint`."""
    return runs.is_of_run(job, (read_world(checkpoint) or {}).get("runs", ()))


def newest_whole(folder: Path, wanted: Callable[[Path], bool] = lambda checkpoint: True) -> str | None:
    """Return the newest complete checkpoint in `folder` that is not damaged; every rank calls it.

    A damaged one is named, and the one before is taken.

    Args:
        folder: the output folder.
        wanted: which checkpoints count.

    Raises:
        UserError: ranks see checkpoints, but none in common, or all are damaged.
    """
    candidates = seen_by_all(folder, wanted)
    for path in candidates:
        if is_whole(path, "; trying the one before"):
            return str(path)
    if candidates:
        raise UserError(f"no checkpoint in {folder} is whole; to begin anew, move them away")
    return None


def is_whole(checkpoint: Path, otherwise: str) -> bool:
    """Return whether the files of a checkpoint are as they were written; a damaged one is named, with `otherwise`.

    Every rank calls it. Each host reads all files, shared by its ranks: with --save_on_each_node it has its own.
    """
    job, ranks = current(), Ranks()
    whole = set() if job is None else _whole.setdefault(job, set())
    if checkpoint in whole:
        return True
    part, parts = (0, 1) if job is None else (job.world.local_rank, job.world.local_size)
    problem = next(filter(None, ranks.each(lambda: damage(checkpoint, part, parts))), None)
    if problem is None:
        whole.add(checkpoint)
    elif ranks.rank == 0:
        say(f"warning: {checkpoint} is damaged: {problem}{otherwise}")
    return problem is None


def seen_by_all(folder: Path, wanted: Callable[[Path], bool] = lambda checkpoint: True) -> list[Path]:
    """Return the complete checkpoints in `folder` that every rank sees, the newest first; every rank calls it.

    Args:
        folder: the output folder.
        wanted: which checkpoints count.

    Raises:
        UserError: ranks see checkpoints, but none in common.
    """
    found = {step: path for step, path in checkpoints(folder).items() if wanted(path)}
    remedy = "put --output_dir on a disk that all hosts share, or train with --save_on_each_node"
    return common(found, folder, remedy)
