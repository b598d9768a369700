"""Measures a Trainer's steps for the run record, for recipes and for users' own scripts alike.

Imports transformers, so run.py imports this only once the script has imported transformers itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cpudist.huggingface.shares import SharedSampler
from cpudist.job.record import RunRecord, Training

if TYPE_CHECKING:
    from cpudist.backends import Backend

_WARM_STEPS = 3


class StepTimer(TrainerCallback):  # type: ignore[misc]
    """Times every optimizer step and notes the losses that the Trainer logs.

    A step runs from the end of what came before it (the previous step, an evaluation, a checkpoint) to its
    own end, so data loading counts and evaluations do not. The first step is left out once there are others:
    it warms up.

    Args:
        record: where the times go.
        backend: what the job runs on. Where its devices work lazily, a step ends when they have done it.
        world_size: the number of ranks.
        after_first_steps: called when the job has warmed up.
    """

    def __init__(
        self,
        record: RunRecord,
        backend: Backend,
        world_size: int,
        after_first_steps: Callable[[], None] | None = None,
    ) -> None:
        self._record = record
        self._backend = backend
        self._world_size = world_size
        self._after_first_steps = after_first_steps
        self._warm = False
        self._began = 0.0
        self._communicated = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * self._world_size
        sampler = getattr(kwargs.get("train_dataloader"), "batch_sampler", None)
        if isinstance(sampler, SharedSampler):  # shares are not equal
            samples = sampler.samples_per_step
        self._record.training = Training(samples_per_step=samples)
        self._record.dtype = _dtype(args, kwargs.get("model"))
        self._warm = False
        self._mark()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._backend.synchronize()
        training = self._record.training
        training.steps += 1
        if training.steps == 2 and not self._warm:
            self._warm = True
            training.step_seconds.clear()
            training.communication_seconds = None
        training.step_seconds.append(time.perf_counter() - self._began)
        communicated = self._backend.communication_seconds()
        if communicated is not None:
            total = training.communication_seconds or 0.0
            training.communication_seconds = total + communicated - self._communicated
        if training.steps == _WARM_STEPS and self._after_first_steps is not None:
            self._after_first_steps()
        # The record wants the first and the last loss, however seldom the user logs; all ranks decide alike here.
        if training.steps == 1 or state.global_step >= state.max_steps:
            control.should_log = True
        self._mark()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:
            self._record.training.losses.append(float(logs["loss"]))
        self._mark()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._mark()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._mark()

    def _mark(self) -> None:
        self._began = time.perf_counter()
        self._communicated = self._backend.communication_seconds() or 0.0


def _dtype(args: TrainingArguments, model: Any) -> str | None:
    """The type that the job computes in."""
    if args.bf16:
        return "bfloat16"
    if args.fp16:
        return "float16"
    parameter = next(iter(model.parameters()), None) if model is not None else None
    return None if parameter is None else str(parameter.dtype).removeprefix("torch.")
