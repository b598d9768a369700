"""One rank's way through a job that has started: prepare the libraries, run the target, leave with the others."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cpudist.job.pinning_check import PinningCheck
from cpudist.on_import import after_import
from cpudist.training.interruption import Interrupted, Interruption
from cpudist.training.quiet import quiet_libraries

if TYPE_CHECKING:
    from cpudist.job import Job
    from cpudist.training.target import Target


def run_target(target: Target, job: Job, record_path: Path | None, checkpoint_on_signal: bool = False) -> int:
    """Run `target` to its good end on every rank and end the job, or raise what it raised on this rank.

    Returns the exit status, which is not 0 where a signal has interrupted the training.

    Args:
        target: what to run.
        job: the running job, which is left at the end.
        record_path: the run record's file, if the user has named one.
        checkpoint_on_signal: whether a Trainer saves a checkpoint before a signal ends the job.
    """
    job.held = True
    if job.world.rank != 0:
        quiet_libraries(job.changes)
    job.record.begin(record_path)
    check = PinningCheck(job, job.pinning) if job.pinning else None
    job.changes.then(after_import("transformers.trainer", lambda module: _time_steps(module, job, check)))
    if checkpoint_on_signal:
        job.changes.then(after_import("transformers.trainer", lambda module: _stop_on_signal(module, job)))
    try:
        target.run()
    except Interrupted as end:
        job.leave("interrupted")
        return end.status
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    if check is not None:
        check.look()
        job.finish()
        check.collect()
    job.leave()
    return 0


def _time_steps(trainer_module: ModuleType, job: Job, check: PinningCheck | None) -> None:
    from cpudist.training.step_timer import StepTimer  # imports transformers: only now that it is there

    timer = StepTimer(job.record, job.backend, job.world.size, check.look if check else None)
    trainer_module.DEFAULT_CALLBACKS.append(timer)
    job.changes.then(lambda: trainer_module.DEFAULT_CALLBACKS.remove(timer))


def _stop_on_signal(trainer_module: ModuleType, job: Job) -> None:
    from cpudist.training.checkpoint_on_signal import CheckpointOnSignal, ending

    interruption = Interruption(job.world.rank, job.world.size, job.meeting.store)
    job.changes.then(interruption.end)
    callback = CheckpointOnSignal(interruption)
    trainer_module.DEFAULT_CALLBACKS.append(callback)
    job.changes.then(lambda: trainer_module.DEFAULT_CALLBACKS.remove(callback))
    trainer = trainer_module.Trainer
    job.changes.attribute(trainer, "train", ending(trainer.train, callback))
