"""Runs course.py; at the end of the third step a rank, or `cpudist launch`, gets a signal: RANK|command SIGNAL.

A rank gets it from another process, and so do the workers that load its data, as if a launcher sent it to their group.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

import psutil
import transformers.trainer

target, name = sys.argv[1:3]
del sys.argv[1:3]


class Signalled(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            if target == "command":
                processes = [next(one.pid for one in psutil.Process().parents() if "launch" in one.cmdline())]
            else:
                processes = [*(child.pid for child in multiprocessing.active_children()), os.getpid()]
                assert len(processes) == 1 + args.dataloader_num_workers
            subprocess.run(["kill", "-s", name.removeprefix("SIG"), *map(str, processes)], check=True)

    def on_save(self, args, state, control, **kwargs):
        print("the script's callback: saved", flush=True)

    def on_train_end(self, args, state, control, **kwargs):
        print("the script's callback: ended", flush=True)


if os.environ["RANK"] == target.replace("command", "0"):
    transformers.trainer.DEFAULT_CALLBACKS.append(Signalled)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
