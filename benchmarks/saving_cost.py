"""Measure what a checkpoint costs: the pause of the training, the steps while it is written, and reading it again.

    mpirun -n 2 python benchmarks/saving_cost.py [--rounds 6] [FOLDER]

Trains the model of ddp_step.py on ccl and saves it, with AdamW's state, by `cpudist.Checkpoints` in FOLDER
(default: a temporary folder), in the foreground and in the background by turns. A step while the checkpoint is written
is the mean of the steps that lie wholly or partly in that time. For comparison: a step while nothing is saved, half of
them before that time and half after it, and a copy of the same tensors in memory. Each cell is the median of the
rounds, with the range in brackets.
"""

import argparse
import contextlib
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import cpudist
from cpudist.bench.between_hosts import bert, random_tokens, train_on
from cpudist.bench.report import table, time_cell
from cpudist.bench.timing import Timings
from cpudist.checkpoints import files, state
from cpudist.checkpoints.publishing import Ranks

STEPS = 12  # in a round, while nothing is saved
FOREGROUND, BACKGROUND = "foreground", "background"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args()
    world = cpudist.init("ccl")
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared = [str(folder / "saving_cost")]
        dist.broadcast_object_list(shared)
        measured = _measure(Path(shared[0]), options.rounds, random_tokens(world.rank))
        if world.rank == 0:
            newest = Path(shared[0], FOREGROUND, f"checkpoint-{options.rounds}")
            print(f"{sum(path.stat().st_size for path in newest.iterdir()) / 1e6:.0f} MB in a checkpoint")
            rows = [[name, time_cell(Timings(tuple((one,) for one in seconds)))] for name, seconds in measured.items()]
            print(table(["", "time"], rows))
            for name, of, to in (
                ("pause in the background, of a copy", f"{BACKGROUND}: pause", "a copy in memory"),
                ("step in the background, of a step", f"{BACKGROUND}: a step meanwhile", "a step"),
                ("checksums, of all of reading", "compare checksums", "read it again, all of it"),
            ):
                ratios = [one / other for one, other in zip(measured[of], measured[to], strict=True)]
                print(f"{name}: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        dist.barrier()
        if world.rank == 0:
            shutil.rmtree(shared[0])
        cpudist.shutdown()


def _measure(folder: Path, rounds: int, tokens: torch.Tensor) -> dict[str, list[float]]:
    """Return the seconds of each round by what took them."""
    model = cpudist.wrap(bert())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ranks = Ranks()
    series = {
        FOREGROUND: cpudist.Checkpoints(folder / FOREGROUND),
        BACKGROUND: cpudist.Checkpoints(folder / BACKGROUND, asynchronous=True),
    }
    measured: dict[str, list[float]] = defaultdict(list)

    step = partial(train_on, tokens, model, optimizer, torch.float32)
    for number in range(-1, rounds):  # the first round does not count
        seconds: dict[str, float] = {}
        step()  # makes AdamW's state
        seconds["a copy in memory"] = _timed(state.collect, model, optimizer, {}, ranks.rank, copied=True)
        saved = {"model": model, "optimizer": optimizer}
        seconds[f"{FOREGROUND}: pause"] = _timed(series[FOREGROUND].save, number + 1, **saved)
        step()  # the first one after a pause takes longer
        alone = [_timed(step) for _ in range(STEPS // 2)]
        seconds[f"{BACKGROUND}: pause"] = _timed(series[BACKGROUND].save, number + 1, **saved)
        meanwhile = _steps_while_writing(step)
        alone += [_timed(step) for _ in range(STEPS // 2)]
        seconds["a step"] = statistics.fmean(alone)
        seconds[f"{BACKGROUND}: a step meanwhile"] = statistics.fmean(meanwhile)
        seconds[f"{BACKGROUND}: until it is there"] = sum(meanwhile)
        seconds["compare checksums"] = _timed(files.damage, folder / FOREGROUND / f"checkpoint-{number + 1}", ranks)
        seconds["read it again, all of it"] = _timed(series[FOREGROUND].restore, **saved)
        if number >= 0:
            for name, one in seconds.items():
                measured[name].append(one)
    return measured


def _steps_while_writing(step: Callable[[], None]) -> list[float]:
    """Return the seconds of each step until all ranks have written."""
    writes, seconds = torch.ones(1), []
    while writes.item():
        seconds.append(_timed(step))
        writes.fill_(any(thread.name.startswith("cpudist-checkpoint") for thread in threading.enumerate()))
        dist.all_reduce(writes, dist.ReduceOp.MAX)
    return seconds


def _timed(call: Callable[..., object], *arguments: object, **options: object) -> float:
    """Return the seconds that a call takes, from when all ranks are there."""
    dist.barrier()
    start = time.perf_counter()
    call(*arguments, **options)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
