"""Trainer's part in `--checkpoint-on-signal` (interruption.py): save after the last step, and end there.

Imports transformers, so run.py imports this only once the script has imported transformers itself.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cpudist.console import say
from cpudist.training.interruption import Interrupted, Interruption


class CheckpointOnSignal(TrainerCallback):  # type: ignore[misc]
    """Ends training after the step after which all ranks stop, and has it saved."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._stops = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._interruption.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._interruption.is_last():
            self._stops = control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # there may be no time for it

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        number = self._interruption.signal
        if self._stops and number is not None and state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            say(f"{signal.Signals(number).name}: saved {checkpoint}; ending the job")

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._stops:  # what is done after each epoch; the checkpoint is there
            control.should_save = control.should_evaluate = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._stops:  # until the job is left, a second signal changes nothing
            self._interruption.end()

    def end_training(self) -> None:
        """After the training, when the other callbacks too have seen the checkpoint and the end.

        Raises:
            Interrupted: a signal has ended it.
        """
        if self._stops and self._interruption.signal is not None:
            raise Interrupted(self._interruption.signal)


def ending(train: Callable[..., Any], callback: CheckpointOnSignal) -> Callable[..., Any]:
    """`Trainer.train`, which raises `Interrupted` at its end if a signal has brought it."""

    @functools.wraps(train)
    def train_until_signal(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = train(self, *args, **kwargs)
        callback.end_training()
        return output

    return train_until_signal
