"""Find Trainer's checkpoints, and the one from which all ranks of a restarted run resume."""

import contextlib
import os
from collections import Counter
from pathlib import Path

from cpudist.checkpoints import manifest, runs
from cpudist.checkpoints.folders import numbered, restore
from cpudist.checkpoints.publishing import Ranks
from cpudist.console import say
from cpudist.job import Job, current

STATE = "trainer_state.json"  # the last file that an unpatched Trainer writes
_SENTINEL = "checkpoint-is-incomplete.txt"  # transformers 5 creates it while it saves on SIGTERM

# Number of trainings so far by output folder. A script may train several times; after a restart the order is the same.
_trainings: Counter[str] = Counter()

_SHARED = "put --output_dir on a disk that all hosts share, or train with --save_on_each_node"


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by their steps, the newest last."""
    found = numbered(folder).items()
    return {step: path for step, path in found if (path / STATE).is_file() and not (path / _SENTINEL).exists()}


def adopt(folder: Path, written: Path) -> None:
    """Move files into `written` that a subclass of Trainer has saved directly into `folder`."""
    if folder.is_dir() and not (folder / STATE).exists():  # otherwise it is a checkpoint of an earlier run
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                    path.rename(written / path.name)


def number_training(folder: str) -> int:
    """Return the number of a new training, counted from 0 over this process's trainings with this output folder."""
    _trainings[os.path.abspath(folder)] += 1
    return _trainings[os.path.abspath(folder)] - 1


def newest_of_run(job: Job, folder: Path, training: int) -> str | None:
    """Return this training's newest undamaged checkpoint of an earlier attempt, or None; all ranks must call this."""
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
    """Return whether an earlier attempt of this run has saved `checkpoint`."""
    said = manifest.read(checkpoint)
    return said is not None and runs.may_be_of_run(job, said)


def damage(checkpoint: Path) -> str | None:
    """Describe the first fault in a checkpoint's files; None if there is no fault. All ranks must call this."""
    job = current()  # a host's ranks divide the check: with --save_on_each_node each host has its own files
    part, parts = (0, 1) if job is None else (job.world.local_rank, job.world.local_size)
    return next(filter(None, Ranks().each(lambda: manifest.damage(checkpoint, part, parts))), None)
