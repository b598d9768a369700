"""One rank's way through a job that has started: prepare the libraries, run the target, leave with the others."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cpudist.job.pinning_check import PinningCheck
from cpudist.on_import import after_import
from cpudist.training.quiet import quiet_libraries

if TYPE_CHECKING:
    from cpudist.job import Job
    from cpudist.training.target import Target


def run_target(target: Target, job: Job, record_path: Path | None) -> None:
    """Run `target` to its good end on every rank and end the job, or raise what it raised on this rank.

    Args:
        target: what to run.
        job: the running job, which is left at the end.
        record_path: the run record's file, if the user has named one.
    """
    job.held = True
    if job.world.rank != 0:
        quiet_libraries(job.changes)
    job.record.begin(record_path)
    check = PinningCheck(job, job.pinning) if job.pinning else None
    job.changes.then(after_import("transformers.trainer", lambda module: _time_steps(module, job, check)))
    try:
        target.run()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    if check is not None:
        check.look()
        job.finish()
        check.collect()
    job.leave()


def _time_steps(trainer_module: ModuleType, job: Job, check: PinningCheck | None) -> None:
    from cpudist.training.step_timer import StepTimer  # imports transformers: only now that it is there

    timer = StepTimer(job.record, job.backend, job.world.size, check.look if check else None)
    trainer_module.DEFAULT_CALLBACKS.append(timer)
    job.changes.then(lambda: trainer_module.DEFAULT_CALLBACKS.remove(timer))
