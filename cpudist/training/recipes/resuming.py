"""Where a recipe goes on: the checkpoint that the user names, or the newest one, the same on every rank.

A run has a name, which its restarts keep: in the output folder, where a start writes it, and in every checkpoint. So a
restart does not take a later checkpoint of an earlier run for its own.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from transformers import TrainingArguments

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface.checkpoint_files import begin_run, checkpoints, run_of, run_that_made
from cpudist.job import current

T = TypeVar("T")


def checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """The folder of the checkpoint that --resume_from_checkpoint means, None for a fresh start; every rank calls it.

    "last" (or "true") is the newest one in the output folder. A job that has been started again goes on from the newest
    one that it has made itself, if there is one yet, whatever it was first started with.

    Raises:
        UserError: there is no such checkpoint, some ranks do not see it, or checkpoints would be overwritten.
    """
    folder, job = Path(arguments.output_dir), current()
    restarts = job.environment.restarts if job is not None and arguments.do_train else 0
    known = [run for run in _everyones(run_of(folder)) if run is not None] if restarts else []
    own = _newest(folder, known[0]) if known else None
    if restarts and job is not None and job.world.rank == 0:
        how = f"going on from {own}" if own else f"no checkpoint of this run in {folder} yet, starting as at first"
        say(f"restart {restarts}: {how}")
    checkpoint = own or _asked_for(arguments, restarts)
    if arguments.do_train:
        run = known[0] if known else _everyones(secrets.token_hex(8))[0]
        if job is None or job.world.local_rank == 0:
            begin_run(folder, run)
    return checkpoint


def _asked_for(arguments: TrainingArguments, restarts: int) -> str | None:
    wanted, folder = arguments.resume_from_checkpoint, Path(arguments.output_dir)
    if wanted is None or str(wanted).lower() == "false":
        if arguments.do_train and wanted is None and _newest(folder) is not None:
            raise UserError(
                f"{folder} holds checkpoints of an earlier run: go on from them with --resume_from_checkpoint last, "
                "or give another --output_dir"
            )
        return None
    if str(wanted).lower() in ("last", "true"):
        newest = _newest(folder)
        if newest is None and not restarts:
            raise UserError(f"there is no checkpoint in {folder}; leave --resume_from_checkpoint out")
        return newest
    if not os.path.isdir(wanted):
        raise UserError(f"there is no checkpoint {wanted}; --resume_from_checkpoint takes its folder, or last")
    return str(wanted)


def _newest(folder: Path, run: str | None = None) -> str | None:
    """The newest checkpoint in `folder` that every rank sees; ranks may have been killed before all had theirs.

    Args:
        folder: the output folder.
        run: only checkpoints that this run has made; None: any.
    """
    everyones = _everyones({step for step, path in checkpoints(folder).items() if run in (None, run_that_made(path))})
    common = set.intersection(*everyones)
    if not common and any(everyones):
        blind = [rank for rank, seen in enumerate(everyones) if not seen]
        problem = f"rank {blind[0]} sees none, other ranks do" if blind else "ranks see different ones"
        raise UserError(
            f"there is no checkpoint in {folder} that all ranks see: {problem}; put --output_dir on a disk that all "
            "hosts share, or train with --save_on_each_node"
        )
    return str(folder / f"checkpoint-{max(common)}") if common else None


def _everyones(value: T) -> list[T]:
    """Every rank's value, in rank order."""
    if not dist.is_initialized():
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
