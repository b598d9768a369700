"""Runs course.py with a rank that gets a signal at the end of its third step: RANK SIGNAL."""

import os
import runpy
import signal
import sys
from pathlib import Path

import transformers.trainer

rank, name = sys.argv[1:3]
del sys.argv[1:3]


class Signalled(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.Signals[name])


if os.environ["RANK"] == rank:
    transformers.trainer.DEFAULT_CALLBACKS.append(Signalled)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
