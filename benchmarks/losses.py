"""Compare held-out losses under each setting for slow networks.

    mpirun -n 2 python benchmarks/losses.py FOLDER [--task TASK] [--questions FILE] [SETTING …]

Trains in bfloat16 by autocast, under each SETTING (all of SETTINGS by default) with each seed. A seed decides on the
first parameters that are not pretrained, and on the samples, which are the same under all settings. Each rank counts as
a host of its own, so that one machine is enough.

    language-model: a GPT-2 of 11 million parameters, from nothing, on the source code of Python's standard library
    classifier: a pretrained MiniLM says which article a question of FILE, in SQuAD's format, is about
    answers: it finds the answers to the questions in their paragraphs

FOLDER gets losses.json and losses.png after each training. What is there is not trained again. After --seconds the
program saves what is under way and ends; started again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from loss_tasks import Answers, Classifier, LanguageModel, Task

import cpudist
from cpudist import job, launchers
from cpudist.backends.ccl import ccl_group
from cpudist.bench.report import table

SETTINGS = ("none", "bf16", "int8", "powersgd")
QUESTIONS: dict[str, Callable[[Path], Task]] = {"classifier": Classifier, "answers": Answers}
Curve = list[tuple[float, ...]]  # after how many steps, and the task's measures


class Training:
    """One training of the task's model, under one setting with one seed."""

    def __init__(self, task: Task, folder: Path, setting: str, seed: int) -> None:
        self._world = job.require().world
        self._task, self._seed = task, seed
        torch.manual_seed(seed)
        plain = task.model()
        self._optimizer = torch.optim.AdamW(plain.parameters(), lr=task.rate, fused=True)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, task.rate, task.steps, pct_start=task.warm_up / task.steps
        )
        self._model = cpudist.wrap(plain, compress=setting)
        self._checkpoints = cpudist.Checkpoints(folder / f"{setting}-{seed}-{task.steps}", keep=1)
        self.curve: Curve = []

    def train(self, deadline: float) -> bool:
        """Train to the end, or save at `deadline` of time.monotonic(); return whether this was the end."""
        state: dict[str, Any] = {"model": self._model, "optimizer": self._optimizer, "schedule": self._schedule}
        begin = self._checkpoints.restore(**state, curve=[])
        self.curve = self._checkpoints.values["curve"]
        for step in range(begin, self._task.steps):
            if step % self._task.evaluate == 0 and step > begin:
                self.curve.append((step, *self._evaluate()))
                late = [time.monotonic() > deadline]
                dist.broadcast_object_list(late, 0)
                if late[0]:
                    self._checkpoints.save(step, **state, curve=self.curve)
                    return False
            number = (self._seed * self._task.steps + step) * self._world.size + self._world.rank
            batch = self._task.draw(torch.Generator().manual_seed(number))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = self._model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            cpudist.step(self._optimizer)
            self._schedule.step()
            self._optimizer.zero_grad()
        self.curve.append((self._task.steps, *self._evaluate()))
        return True

    @torch.no_grad()
    def _evaluate(self) -> list[float]:
        self._model.eval()
        own = {name: values[self._world.rank :: self._world.size] for name, values in self._task.held_out.items()}
        parts = zip(*(values.split(32) for values in own.values()), strict=True)
        found = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for part in parts:
                batch = dict(zip(own, part, strict=True))
                found.append(torch.stack(self._task.measure(self._model(**batch), batch)).float())
        self._model.train()
        return [float(cpudist.mean(value)) for value in torch.stack(found).mean(0)]


def report(task: Task, folder: Path, found: dict[str, dict[str, Curve]]) -> None:
    """Write and draw all curves, and print the last measures."""
    from matplotlib.figure import Figure

    (folder / "losses.json").write_text(json.dumps(found, indent=1) + "\n")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    rows, settings = [], [setting for setting in SETTINGS if setting in found]
    for setting in settings:
        seeds, compared = found[setting], found[settings[0]]
        columns = [[point[1] for point in points] for points in zip(*seeds.values(), strict=True)]
        steps, means = [point[0] for point in next(iter(seeds.values()))], [statistics.fmean(one) for one in columns]
        (line,) = axes.plot(steps, means, label=setting)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.2, color=line.get_color())
        last = [[curve[-1][1 + index] for curve in seeds.values()] for index in range(len(task.measures))]
        cells = [f"{statistics.fmean(values):.4f} ({min(values):.4f}-{max(values):.4f})" for values in last]
        ratio = statistics.fmean(seeds[seed][-1][1] / compared[seed][-1][1] for seed in seeds if seed in compared)
        rows.append([setting, str(len(seeds)), cells[0], f"{ratio - 1:+.2%}", *cells[1:]])
    axes.set(xlabel="steps", ylabel=task.measures[0])
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "losses.png", dpi=120)
    head = ["setting", "seeds", task.measures[0], f"to {settings[0]}", *task.measures[1:]]
    print(table(head, rows), flush=True)


def make(options: argparse.Namespace) -> Task:
    """Return the task that the options name."""
    kind = QUESTIONS.get(options.task)
    return LanguageModel(options.folder) if kind is None else kind(options.questions)


def main() -> None:
    """Train under all settings in turn, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=("language-model", *QUESTIONS), default="language-model")
    parser.add_argument("--questions", type=Path, metavar="FILE")
    parser.add_argument("settings", nargs="*", metavar="SETTING", default=[], help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_intermixed_args()
    if options.task in QUESTIONS and not options.questions:
        sys.exit(f"--task {options.task} is about questions; give --questions FILE, in SQuAD's format")
    deadline = time.monotonic() + options.seconds
    place = launchers.detect(os.environ).placement()
    ccl_group.node_identity = lambda: f"host {place.rank}"
    world = cpudist.init("ccl")
    hosts = replace(world, node_rank=world.rank, node_count=world.size, local_rank=0, local_size=1)
    job.require().world = job.require().communication.world = hosts
    if world.rank == 0:
        options.folder.mkdir(parents=True, exist_ok=True)
        task = make(options)
    dist.barrier()
    if world.rank != 0:
        task = make(options)  # it reads the tokens that rank 0 has written
    written = options.folder / "losses.json"
    found: dict[str, dict[str, Curve]] = json.loads(written.read_text()) if written.exists() else {}
    for seed in map(str, range(options.seeds)):
        for setting in options.settings or SETTINGS:
            if seed in found.get(setting, {}):
                continue
            training = Training(task, options.folder, setting, int(seed))
            if not training.train(deadline):
                cpudist.shutdown()
                return
            found.setdefault(setting, {})[seed] = training.curve
            if world.rank == 0:
                report(task, options.folder, found)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
