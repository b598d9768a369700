"""Callbacks of Trainer: measure its steps, and end it with a checkpoint after a signal.

This module imports transformers, so it is imported only after the script has imported transformers.
"""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from cpudist.backends import Backend
from cpudist.console import say
from cpudist.huggingface.training_arguments import computing_type
from cpudist.huggingface.uneven_shares import SharedSampler
from cpudist.job import Job
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.record import RunRecord
from cpudist.observability.training_figures import Training
from cpudist.optimization import precision
from cpudist.supervision.interruption import Interrupted, Interruption


class EndStep(TrainerCallback):  # type: ignore[misc]
    """Start the work of lazy devices at the end of each step; wait for it only after the first and the last step."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ends = self._first or state.global_step >= state.max_steps
        self._first = False
        if ends:
            self._backend.devices.synchronize()
        else:
            self._backend.devices.end_step()


class StepTimer(Observer, TrainerCallback):  # type: ignore[misc]
    """Write the time of every optimizer step and the losses that Trainer logs into the run record.

    A step begins when the previous step, evaluation or checkpoint has ended. So its time includes loading data, but no
    evaluation or checkpoint. If more follow, the first step is left out as a warm-up, with torch.compile the first two.
    """

    def __init__(self, job: ObservedJob, record: RunRecord) -> None:
        self._job, self._record = job, record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the record of a training; it will be written to the output folder."""
        self._record.leave_in(Path(args.output_dir))
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * self._job.world.size
        sampler = getattr(kwargs.get("train_dataloader"), "batch_sampler", None)
        if isinstance(sampler, SharedSampler):  # the ranks' shares are not equal
            samples = sampler.samples_per_step
        self._record.training = Training(self._job.counter, per_step={"samples": samples}, first=state.global_step)
        dtype = computing_type(args)
        self._record.dtype = None if dtype is torch.float32 else precision.name(dtype)
        self._record.note_model(kwargs.get("model"))
        self._mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        training = self._record.training
        # A compiled model may compute the first step eagerly (huggingface/trainer.py, compute_loss), and compile later.
        warm_up = 2 if args.torch_compile else 1
        if training.steps == warm_up + 1:
            if args.torch_compile and self._job.world.rank == 0:
                seconds, cache = sum(training.step_seconds()), os.environ["TORCHINDUCTOR_CACHE_DIR"]
                say(f"the first two steps took {seconds:.0f} s with compiling; {cache} keeps the code for later starts")
            training.times.clear()
        training.end_step(self._job.backend.communication_seconds())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Add the loss to the record, and cpudist's figures to the logs, which reporters such as TensorBoard get."""
        if logs and "loss" in logs:
            self._record.training.losses.append(float(logs["loss"]))
            if args.report_to:  # without reporters the figures would only lengthen Trainer's lines
                logs.update(self._record.figures(int(state.logging_steps)))  # --logging_steps may be a float
        self._mark()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exclude the checkpoint or the evaluation from the next step's time."""
        self._mark()

    on_evaluate = on_save

    def _mark(self) -> None:
        self._record.training.begin_step(self._job.backend.communication_seconds())


class CheckpointOnSignal(TrainerCallback):  # type: ignore[misc]
    """End training with a checkpoint after the step that all ranks have agreed on."""

    def __init__(self, job: Job) -> None:
        self._interruption = Interruption(job.world.rank, job.world.size, job.store, job.heartbeat)
        self._stops = False
        job.changes.then(self._interruption.end)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._interruption.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make Trainer save a checkpoint and stop if the ranks have agreed that this step is the last one."""
        if self._interruption.is_last():
            self._stops = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # the scheduler may leave no time to evaluate

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Announce the checkpoint, on rank 0."""
        number = self._interruption.signal
        if self._stops and number is not None and state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            say(f"{signal.Signals(number).name}: saved {checkpoint}; ending the job")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a signal, skip the checkpoint and the evaluation of the epoch, because a checkpoint exists already."""
        if self._stops:
            control.should_save = control.should_evaluate = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the signal handlers after a complete training; an interrupted one keeps them until the job ends."""
        if not self._stops:
            self._interruption.end()

    def ending(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Return `train`, followed by the end of the job if a signal has ended the training."""

        @functools.wraps(train)
        def train_until_signal(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            output = train(trainer, *args, **kwargs)
            if self._stops and self._interruption.signal is not None:
                raise Interrupted(128 + self._interruption.signal)
            return output

        return train_until_signal
