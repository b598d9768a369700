"""Runs course.py and disturbs or watches it: the name of a function here, what it takes, then what course.py takes."""

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import torch.distributed as dist
from transformers import Trainer, TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS


def course():
    runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")


def beside():
    """With --async-checkpoint on a disk so slow that a step is made while a checkpoint is written."""
    from cpudist.huggingface.trainer_checkpoints import DeferredFiles

    writing, stepped, write = threading.Event(), threading.Event(), DeferredFiles.write

    def write_slowly(self):
        if self._content:
            writing.set()
            assert stepped.wait(60), "no step is made while a checkpoint is written"
        write(self)

    class Steps(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            if writing.is_set():
                stepped.set()

    DeferredFiles.write = write_slowly
    DEFAULT_CALLBACKS.append(Steps)
    course()
    assert stepped.is_set()


def killed(kills):
    """Kill rank 0 in each attempt: [[EVENT, PART], …] of Python's auditing, PART being in a path.

    Files beside the output folder count the kills. Rank 0 prints the steps of the checkpoints that an attempt finds.
    """
    kills = json.loads(kills)
    output = Path(sys.argv[sys.argv.index("--output_dir") + 1])
    number = len(list(output.parent.glob(f"{output.name}.killed*")))

    def kill(name, args):
        if number < len(kills) and name == kills[number][0] and kills[number][1] in str(args[0]):
            Path(f"{output}.killed{number}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if os.environ["RANK"] == "0":
        found = sorted(int(path.name.removeprefix("checkpoint-")) for path in output.glob("checkpoint-*"))
        print(found, flush=True)
        sys.addaudithook(kill)
    course()


def seen(file):
    """Write which samples each step has seen, and how often."""
    own, training_step = defaultdict(Counter), Trainer.training_step

    def watched(self, model, inputs, *args):
        own[self.state.global_step].update("".join(map(chr, row)) for row in inputs["input_ids"].tolist())
        return training_step(self, model, inputs, *args)

    Trainer.training_step = watched
    course()
    everyones = [{}] * dist.get_world_size()
    dist.all_gather_object(everyones, dict(own))
    if os.environ["RANK"] == "0":
        Path(file).write_text(json.dumps({step: sum((one[step] for one in everyones), Counter()) for step in own}))


def signalled(target, name):
    """At the end of the third step a rank, or the "command" `cpudist launch`, gets a signal from another process.

    So do the workers that load a rank's data, as if a launcher sent it to their group.
    """

    class Signalled(TrainerCallback):
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
        DEFAULT_CALLBACKS.append(Signalled)
    course()


run = globals()[sys.argv.pop(1)]
run(*(sys.argv.pop(1) for _ in range(run.__code__.co_argcount)))
