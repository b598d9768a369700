"""Find the checkpoints of the current run that all ranks see.

A launcher names its run (`Launcher.run_ids`), and restarts keep the names. Every checkpoint contains the names, so a
restart ignores the checkpoints of earlier runs in the same folder.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from cpudist.checkpoints.manifest import Manifest
from cpudist.checkpoints.publishing import Ranks
from cpudist.console import option, say
from cpudist.errors import UserError
from cpudist.job import Job


def may_be_of_run(job: Job, said: Manifest | None) -> bool:
    """Return whether an earlier attempt of this run may have saved the checkpoint; True if its manifest is damaged."""
    return said is None or not job.earlier_run_ids.isdisjoint(said.runs)


def started_again(job: Job) -> str:
    return f"restart {job.restarts}" if job.restarts else "started again"


def say_from_the_beginning(job: Job, folder: Path) -> None:
    """Print that a restarted training starts from the beginning; every rank may call it."""
    if job.restarts and job.world.rank == 0:
        why = f"no checkpoint of this run in {folder} yet" if job.options.resumes else option("resume", "never")
        say(f"{started_again(job)}: {why}, starting from the beginning")


def newest_whole(
    found: Mapping[int, Path], folder: Path, remedy: str, damage: Callable[[Path], str | None]
) -> Path | None:
    """Return the newest undamaged checkpoint that every rank sees; None if there are no checkpoints.

    All ranks must call this. A damaged checkpoint is reported, and the previous one is used. If hosts share no disk, a
    kill may have left a checkpoint on some of them only; `remedy` is advice for this case. `damage` returns the fault
    in a checkpoint, the same on all ranks. If ranks see no common checkpoint, or only damaged ones, raise UserError.
    """
    ranks = Ranks()
    everyones = ranks.all_gather(set(found))
    steps = set.intersection(*everyones)
    if not steps and any(everyones):
        blind = [rank for rank, seen in enumerate(everyones) if not seen]
        problem = f"rank {blind[0]} sees none, other ranks do" if blind else "ranks see different ones"
        raise UserError(f"there is no checkpoint in {folder} that all ranks see: {problem}; {remedy}")
    for step in sorted(steps, reverse=True):
        wrong = damage(found[step])
        if wrong is None:
            return found[step]
        if ranks.rank == 0:
            say(f"warning: {found[step]} is damaged: {wrong}; trying the one before")
    if steps:
        raise UserError(f"every checkpoint in {folder} is damaged; to begin anew, move them away")
    return None
