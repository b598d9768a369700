"""Runs course.py with --async-checkpoint on a disk so slow that a step is made while a checkpoint is written."""

import runpy
import threading
from pathlib import Path

from transformers import TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS

from cpudist.huggingface.trainer_checkpoints import DeferredFiles

writing, stepped, write = threading.Event(), threading.Event(), DeferredFiles.write


def write_slowly(self: DeferredFiles) -> None:
    if self._content:
        writing.set()
        assert stepped.wait(60), "no step is made while a checkpoint is written"
    write(self)


class Steps(TrainerCallback):
    def on_step_end(self, *args: object, **kwargs: object) -> None:
        if writing.is_set():
            stepped.set()


DeferredFiles.write = write_slowly
DEFAULT_CALLBACKS.append(Steps)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
assert stepped.is_set()
