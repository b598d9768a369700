"""Trainer's part in `--checkpoint-on-signal` (interruption.py): save after the last step, and end there.

Imports transformers, so run.py imports this only once the script has imported transformers itself.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cpudist.console import say
from cpudist.training.interruption import Interrupted, Interruption


class CheckpointOnSignal(TrainerCallback):  # type: ignore[misc]
    """Ends training with `Interrupted` once a checkpoint of the step is saved after which all ranks stop."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._stops = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._interruption.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._interruption.is_last():
            self._stops = control.should_save = True
            control.should_evaluate = False  # there may be no time for it

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        number = self._interruption.signal
        if not self._stops or number is None:
            return
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            say(f"{signal.Signals(number).name}: saved {checkpoint}; ending the job")
        raise Interrupted(number)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._interruption.end()
