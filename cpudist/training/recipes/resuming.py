"""Where a recipe goes on: the checkpoint that the user names, or the newest one, the same on every rank."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist
from transformers import TrainingArguments

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.huggingface.checkpoint_files import checkpoints
from cpudist.job import current


def checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """The folder of the checkpoint that --resume_from_checkpoint means, None for a fresh start; every rank calls it.

    "last" (or "true") is the newest one in the output folder. A job that has been started again goes on from that one
    too, if there is one yet, whatever it was first started with.

    Raises:
        UserError: there is no such checkpoint, some ranks do not see it, or checkpoints would be overwritten.
    """
    wanted, folder = arguments.resume_from_checkpoint, arguments.output_dir
    job = current()
    restarts = job.environment.restarts if job is not None else 0
    if restarts and arguments.do_train:
        newest = _newest(folder)
        if job is not None and job.world.rank == 0:
            how = f"going on from {newest}" if newest else f"no checkpoint in {folder} yet, starting as at first"
            say(f"restart {restarts}: {how}")
        if newest is not None:
            return newest
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


def _newest(folder: str) -> str | None:
    """The newest checkpoint in `folder` that every rank sees; ranks may have been killed before all had theirs."""
    steps = set(checkpoints(folder))
    everyones = [steps]
    if dist.is_initialized():
        everyones = [steps] * dist.get_world_size()
        dist.all_gather_object(everyones, steps)
    common = set.intersection(*everyones)
    if not common and any(everyones):
        blind = next(rank for rank, seen in enumerate(everyones) if not seen)
        raise UserError(
            f"rank {blind} sees no checkpoint in {folder}, other ranks do; put --output_dir on a disk that all hosts "
            "share, or train with --save_on_each_node"
        )
    return str(Path(folder) / f"checkpoint-{max(common)}") if common else None
