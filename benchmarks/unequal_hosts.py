"""Compare equal shares with --balance on hosts of unequal speed: samples per second after the first 40 steps.

    python benchmarks/unequal_hosts.py [--speeds 0.6,0.2] [--turns 3] [--bfloat16] [--trainer]
    python benchmarks/unequal_hosts.py --speeds 0.45,0.45 --turns 1 --steps 450 --slow 150,300

As root: the hosts are namespaces of this machine, each with a part of a core, which other programs do not get. Each
turn trains with equal shares and with --balance, in about a minute. With --slow the last host has a third of its part
from one step to another.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import jobs  # type: ignore[import-not-found]
import torch
from bed import Bed, missing  # type: ignore[import-not-found]
from control_group import ControlGroup, control_group  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset

import cpudist

_WARM_UP, _PER_STEP, _TOKENS, _WIDTH = 40, 16, 64, 192
_SECONDS = 500.0  # of a run, at most
_PERIOD = 8000  # of a quota, in microseconds: short, so that a message does not wait long for the next


class Model(torch.nn.Module):
    """An encoder whose loss is its error at returning its input; it notes the batches that it gets."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.sizes: list[int] = []
        self._file, self._began = file, 0.0

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(self.sizes) == _WARM_UP:
            self._began = time.perf_counter()
        self.sizes.append(len(batch))
        self._file.with_suffix(".steps").write_text(str(len(self.sizes)))
        return {"loss": (self.encoder(batch) - batch).square().mean()}

    def write(self, loss: float) -> None:
        rate = (len(self.sizes) - _WARM_UP) * _PER_STEP / (time.perf_counter() - self._began)
        self._file.write_text(json.dumps({"rate": rate, "sizes": self.sizes, "loss": loss}))


def train(file: str, steps: str, how: str) -> None:
    """Train in a loop of one's own, or with Trainer; a rank of the job."""
    world = cpudist.init()
    model = Model(Path(file) if world.rank == 0 else Path(file + "-of-others"))
    data = TensorDataset(torch.randn(int(steps) * _PER_STEP, _TOKENS, _WIDTH))
    loss = (_by_trainer if "trainer" in how else _by_own_loop)(model, data, _PER_STEP // world.size, "bfloat16" in how)
    if world.rank == 0:
        model.write(loss)


def _by_own_loop(model: Model, data: TensorDataset, batch_size: int, bfloat16: bool) -> float:
    wrapped, optimizer = cpudist.wrap(model), torch.optim.AdamW(model.parameters())
    for (batch,) in DataLoader(data, batch_sampler=cpudist.shares(data, batch_size)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = wrapped(batch)["loss"]
        loss.backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()
    return float(cpudist.mean(loss.detach() * len(batch) / batch_size))


def _by_trainer(model: Model, data: TensorDataset, batch_size: int, bfloat16: bool) -> float:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch_size,
            num_train_epochs=1,
            learning_rate=1e-3,
            bf16=bfloat16,
            save_strategy="no",
            logging_steps=10,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data, data_collator=_collate)
        trainer.train()
    return float(next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry))


def _collate(rows: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"batch": torch.stack([row for (row,) in rows])}


def _limit(group: ControlGroup, quota: float) -> None:
    used = str(round(quota * _PERIOD))
    group.limit("cpu", cpu__cfs_period_us=str(_PERIOD), cpu__cfs_quota_us=used, cpu__max=f"{used} {_PERIOD}")


def _follow(process: subprocess.Popen[bytes], steps: Path, group: ControlGroup, quota: float, slow: list[int]) -> int:
    """Wait for the job, at most `_SECONDS`; let the last host be slow between two steps. Return the job's status."""
    end, times = time.monotonic() + _SECONDS, 1.0
    while process.poll() is None and time.monotonic() < end:
        made = int((steps.exists() and steps.read_text()) or 0)
        now = 1 / 3 if slow and slow[0] <= made < slow[1] else 1.0
        if now != times:
            times = now
            _limit(group, quota * times)
        time.sleep(0.05)
    return process.wait(1)


def main() -> None:
    """Print the rates of each turn, and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", default="0.6,0.2", help="the part of a core of each host")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--trainer", action="store_true", help="train with Trainer, not in a loop of one's own")
    parser.add_argument("--slow", default="", metavar="FROM,TO", help="the steps in which the last host is slow")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    quotas = [float(quota) for quota in options.speeds.split(",")]
    slow = [int(step) for step in options.slow.split(",") if step]
    ratios = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        groups = [stack.enter_context(control_group()) for _ in quotas]
        bed = stack.enter_context(Bed(folder, len(quotas)))
        for index, (group, quota) in enumerate(zip(groups, quotas, strict=True)):
            _limit(group, quota)
            group.limit("cpu", cpu__shares="65536", cpu__weight="10000")
            group.limit("cpuset", cpuset__cpus=str(index % 2))
            bed.join(f"h{index}", group)
        together = ["mpirun", "-hosts", ",".join(bed.addresses), "-n", str(len(quotas)), "-ppn", "1"]
        together[0] = str(jobs.BIN / together[0])
        file, how = folder / "found.json", "bfloat16" * options.bfloat16 + "trainer" * options.trainer
        for _ in range(options.turns):
            found: dict[str, Any] = {}
            for shares in ("equal", "balance"):
                flags = ["--record", str(folder / "record.json"), *(["--balance"] if shares == "balance" else [])]
                command = jobs.train(*flags, __file__, "train", str(file), str(options.steps), how)
                process = bed.start("h0", groups[0].inside([*together, *command]), folder / "log")
                if _follow(process, file.with_suffix(".steps"), groups[-1], quotas[-1], slow):
                    sys.exit((folder / "log").read_text())
                found[shares] = json.loads(file.read_text())
            equal, balance = found["equal"], found["balance"]
            ratios.append(balance["rate"] / equal["rate"])
            changes = [step for step, (old, new) in enumerate(pairwise(balance["sizes"]), 1) if new != old]
            print(
                f"{equal['rate']:.1f} and {balance['rate']:.1f} samples/s, {ratios[-1]:.2f} times as fast; h0 computes "
                f"{', '.join(str(balance['sizes'][step]) for step in (0, *changes))} of {_PER_STEP}, changed at "
                f"{changes}; last losses {equal['loss']:.7g} and {balance['loss']:.7g}",
                flush=True,
            )
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(*sys.argv[2:])
    else:
        main()
