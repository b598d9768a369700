"""Compare the held-out loss of a language model under each setting for slow networks.

    mpirun -n 2 python tools/losses.py FOLDER [--steps N] [--seeds N] [--seconds N] [SETTING …]

Trains a GPT-2 of 11 million parameters, in bfloat16 by autocast, on the source code of Python's standard library, under
each SETTING (all of SETTINGS by default) with each seed. A seed decides on the first parameters and on the samples,
which are the same under all settings. Each rank counts as a host of its own, so that one machine is enough.

FOLDER gets losses.json and losses.png after each training. What is there is not trained again. After --seconds the
program saves what is under way and ends; started again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sysconfig
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.distributed as dist
from tokenizers import models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel

import cpudist
from cpudist import job, launchers
from cpudist.backends.ccl import group
from cpudist.bench.report import table

SETTINGS: dict[str, dict[str, Any]] = {
    **{scheme: {"compress": scheme} for scheme in ("none", "bf16", "int8", "powersgd")},
    **{f"sync-every {every}": {"sync_every": every} for every in (8, 32)},
    **{f"sync-every {every}, outer none": {"sync_every": every, "outer": "none"} for every in (8, 32)},
}
VOCABULARY, LENGTH, BATCH = 1024, 64, 2  # tokens; tokens of a sample; samples of a rank in a step
SIZES = {"n_layer": 6, "n_head": 6, "n_embd": 384, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
RATE, WARM_UP = 6e-4, 100
EVALUATE = 256  # steps; a multiple of all K, so that evaluating adds no exchange
Curve = list[tuple[int, float]]  # after how many steps, which held-out loss, in nats per token


def read_tokens(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens to train on, and the held-out ones: those of every twentieth file."""
    cache = folder / "tokens.pt"
    if not cache.exists():
        texts = [file.read_text(errors="replace") for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
        held_out = texts[::20]
        del texts[::20]
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
        )
        parts = [torch.tensor(tokenizer.encode("".join(part)).ids) for part in (texts, held_out)]
        torch.save(parts, cache)
    train, held_out = torch.load(cache, weights_only=True)
    return train, held_out


class Training:
    """One training of the model, under one setting with one seed."""

    def __init__(self, folder: Path, setting: str, seed: int, steps: int) -> None:
        self._world = job.require().world
        self._seed, self._steps = seed, steps
        self._train, held_out = read_tokens(folder)
        blocks = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)
        self._held_out = blocks[:: max(len(blocks) // 128, 1)][self._world.rank :: self._world.size]
        torch.manual_seed(seed)
        plain = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **SIZES)
        )
        plain.loss_type = "ForCausalLM"
        self._optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, fused=True)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(self._optimizer, RATE, steps, pct_start=WARM_UP / steps)
        self._model = cpudist.wrap(plain, **SETTINGS[setting])
        self._checkpoints = cpudist.Checkpoints(folder / f"{setting}-{seed}-{steps}", keep=1)
        self.curve: Curve = []

    def train(self, deadline: float) -> bool:
        """Train to the end, or save at `deadline` of time.monotonic(); return whether this was the end."""
        state: dict[str, Any] = {"model": self._model, "optimizer": self._optimizer, "schedule": self._schedule}
        begin = self._checkpoints.restore(**state, curve=[])
        self.curve = self._checkpoints.values["curve"]
        for step in range(begin, self._steps):
            if step % EVALUATE == 0 and step > begin:
                self.curve.append((step, self._evaluate()))
                late = [time.monotonic() > deadline]
                dist.broadcast_object_list(late, 0)
                if late[0]:
                    self._checkpoints.save(step, **state, curve=self.curve)
                    return False
            with torch.autocast("cpu", dtype=torch.bfloat16):
                batch = self._batch(step)
                loss = self._model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            cpudist.step(self._optimizer)
            self._schedule.step()
            self._optimizer.zero_grad()
        self.curve.append((self._steps, self._evaluate()))
        return True

    def _batch(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(
            (self._seed * self._steps + step) * self._world.size + self._world.rank
        )
        starts = torch.randint(len(self._train) - LENGTH, (BATCH,), generator=generator)
        return torch.stack([self._train[start : start + LENGTH] for start in starts])

    @torch.no_grad()
    def _evaluate(self) -> float:
        self._model.eval()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = [self._model(input_ids=part, labels=part).loss for part in self._held_out.split(32)]
        self._model.train()
        return float(cpudist.mean(torch.stack(losses).mean()))


def report(folder: Path, found: dict[str, dict[str, Curve]]) -> None:
    """Write and draw all curves, and print the last losses."""
    from matplotlib.figure import Figure

    (folder / "losses.json").write_text(json.dumps(found, indent=1) + "\n")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    rows, first = [], None
    for setting in filter(found.get, SETTINGS):
        curves = found[setting]
        steps = [step for step, _ in next(iter(curves.values()))]
        columns = list(zip(*([loss for _, loss in curve] for curve in curves.values()), strict=True))
        (line,) = axes.plot(steps, [statistics.fmean(column) for column in columns], label=setting)
        axes.fill_between(steps, list(map(min, columns)), list(map(max, columns)), alpha=0.2, color=line.get_color())
        mean = statistics.fmean(columns[-1])
        first = first or mean
        last = ", ".join(f"{loss:.4f}" for loss in columns[-1])
        rows.append([setting, f"{mean:.4f}", f"{mean / first - 1:+.2%}", last])
    axes.set(xlabel="steps", ylabel="held-out loss, nats per token")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "losses.png", dpi=120)
    print(table(["setting", "held-out loss", f"to {next(iter(SETTINGS))}", "of each seed"], rows), flush=True)


def main() -> None:
    """Train under all settings in turn, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", metavar="SETTING", default=[], help=", ".join(SETTINGS))
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_intermixed_args()
    deadline = time.monotonic() + options.seconds
    place = launchers.detect(os.environ).placement()
    group.node_identity = lambda: f"host {place.rank}"
    world = cpudist.init("ccl")
    hosts = replace(world, node_rank=world.rank, node_count=world.size, local_rank=0, local_size=1)
    job.require().world = job.require().communication.world = hosts
    if world.rank == 0:
        options.folder.mkdir(parents=True, exist_ok=True)
        read_tokens(options.folder)
    dist.barrier()
    written = options.folder / "losses.json"
    found: dict[str, dict[str, Curve]] = json.loads(written.read_text()) if written.exists() else {}
    for seed in map(str, range(options.seeds)):
        for setting in options.settings or SETTINGS:
            if seed in found.get(setting, {}):
                continue
            training = Training(options.folder, setting, int(seed), options.steps)
            if not training.train(deadline):
                cpudist.shutdown()
                return
            found.setdefault(setting, {})[seed] = training.curve
            if world.rank == 0:
                report(options.folder, found)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
