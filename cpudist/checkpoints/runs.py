"""Find the checkpoints of the running job's run that all ranks see.

A run has names from its launcher (`Launcher.run_ids`); restarts keep them. Every checkpoint has them, so a restart does
not take a checkpoint of an earlier run in the same folder for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cpudist.checkpoints.manifest import Manifest
from cpudist.checkpoints.publishing import Ranks
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.job import Job


def may_be_of_run(job: Job, said: Manifest | None) -> bool:
    """Return whether an earlier attempt at this run has saved a checkpoint, or it is too damaged (None) to say so."""
    return said is None or not job.earlier_run_ids.isdisjoint(said.runs)


def started_again(job: Job) -> str:
    """Return the beginning of a line about a restart."""
    return f"restart {job.restarts}" if job.restarts else "started again"


def say_from_the_beginning(job: Job, folder: Path) -> None:
    """Announce that a restarted training starts as it did at first; every rank may call it."""
    if job.restarts and job.world.rank == 0:
        why = f"no checkpoint of this run in {folder} yet" if job.options.resumes else "--resume never"
        say(f"{started_again(job)}: {why}, starting from the beginning")


def newest_whole(
    found: Mapping[int, Path], folder: Path, remedy: str, damage: Callable[[Path], str | None]
) -> Path | None:
    """Return the newest undamaged checkpoint that every rank sees; None where there are none.

    A damaged checkpoint is named in a line, and the one before it is taken. Every rank calls it. Where hosts share no
    disk, a kill may have left a checkpoint on some of them only.

    Args:
        remedy: advice to the user where ranks see none in common.
        damage: returns the fault in a checkpoint, the same on all ranks.

    Raises:
        UserError: ranks see checkpoints, but none in common, or all are damaged.
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
        raise UserError(f"no checkpoint in {folder} is whole; to begin anew, move them away")
    return None
