"""Run a target on one rank of a started job: prepare the libraries, run the target, end with the other ranks."""

import logging
import sys

from cpudist import huggingface
from cpudist.console import say
from cpudist.job import Job
from cpudist.observability.gradient_times import GradientTimes
from cpudist.patching.on_import import after_import
from cpudist.patching.undo import Changes
from cpudist.script.target import Target
from cpudist.supervision.interruption import Interrupted

_QUIET = {  # Variables that the libraries read when they are imported.
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


def run_target(target: Target, job: Job) -> int:
    """Run `target` to its end on this rank, and end the job with the other ranks.

    Return the exit status: 0, or 128 plus the number of the signal that has interrupted the training.
    """
    job.ended_by_run_target = True
    if job.world.rank != 0:
        _quiet_libraries(job.changes)
    if job.options.timeline is not None:
        from cpudist.observability.timeline import Timeline  # imported late, since few jobs need it

        job.changes.default_variable("KINETO_LOG_LEVEL", "99")  # torch 2.13 prints a line at the start and at the end
        job.observers.add(Timeline(job, job.options.timeline, job.options.steps or (10, 15)))
        job.observers.add(GradientTimes(job, job.record))
    if job.options.metrics_port is not None and job.world.rank == 0:
        from cpudist.observability.metrics import Metrics  # imported late, since few environments have the library

        job.changes.then(Metrics(job, job.record, *job.options.metrics_port).stop)
    if (job.options.target or "").partition(".")[0] != "cpudist":  # our own programs print their results themselves
        job.record.name_run(job.options.target or "", "runs")
        job.record.begin()
    huggingface.add_callbacks(job)
    if job.options.checkpoint_on_signal:
        _warn_own_loop(job)
    try:
        target()
    except Interrupted as end:
        job.shutdown("interrupted")
        return end.code
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    if job.backend.has_failed():
        remedy = "do not catch this error: the results would be those of one rank"
        raise RuntimeError(f"a call of the process group has failed, and the script has gone on without it; {remedy}")
    job.shutdown()
    return 0


def _quiet_libraries(changes: Changes) -> None:
    """Turn off progress bars, info messages and warnings of the usual libraries, before they are imported."""
    for name, value in _QUIET.items():
        changes.default_variable(name, value)
    # Setting the log level does not suffice: Trainer sets it to "warning" on ranks other than 0.
    changes.then(after_import("transformers.utils.logging", lambda module: module.disable_default_handler()))
    logging.getLogger("transformers").addHandler(logging.NullHandler())  # without a handler, warnings go to stderr
    if not sys.warnoptions:  # the user has chosen no warnings (-W, PYTHONWARNINGS, …)
        changes.ignored_warnings()


def _warn_own_loop(job: Job) -> None:
    """Warn at the first step of a script's own loop (not Trainer's) that a signal saves no checkpoint there."""
    own_loop = job.record.training

    def warn(_: object) -> None:
        if job.counter.steps == 1 and job.record.training is own_loop and job.world.rank == 0:
            say("warning: --checkpoint-on-signal saves in Trainer's loop only; save in yours with cpudist.Checkpoints")

    job.counter.after_step.append(warn)
