"""Compare steps on xla of a program for PyTorch/XLA alone with those of the same program with cpudist.

    python tools/xla_overhead.py [small|medium|large] [TURNS]

Both train in this process and take short turns, so that other work on the machine slows both; each turn is compared
with the other's turn beside it. The first program trains twice: the ratio of these two shows the noise. One process
only, because several CPU processes do not train together without cpudist.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch_xla

import cpudist
from cpudist.bench.report import table

STEPS = 5  # of a turn, at whose end the device is done
WARM_UP = 3  # turns of each that are not counted: graphs are compiled
ALONE = "PyTorch/XLA alone"
SIZES = {"small": (64, 8), "medium": (128, 16), "large": (256, 32)}  # width of the model, and samples of a batch
CLOCKS = {"wall clock": time.perf_counter, "CPU time": time.process_time}  # other work affects the second less

Seconds = dict[str, list[float]]  # of each turn, by clock


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """End a step as PyTorch/XLA's documentation does."""
    optimizer.step()
    torch_xla.sync()


def training(
    model: torch.nn.Module, step: Callable[[torch.optim.Optimizer], None], inputs: torch.Tensor
) -> Callable[[], None]:
    """Return a turn: a function that trains `model` on `inputs`, float32 [samples, 32, width], for STEPS steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def turn() -> None:
        for _ in range(STEPS):
            loss = model(inputs.to("xla")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step(optimizer)
        torch_xla.sync(wait=True)

    return turn


def encoder(width: int) -> torch.nn.Module:
    """Return two layers of a Transformer, without dropout."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def take_turns(candidates: Mapping[str, Callable[[], None]], turns: int) -> dict[str, Seconds]:
    """Return the seconds of every turn by each clock. The order changes, so none always follows the same other."""
    seconds: dict[str, Seconds] = {name: {clock: [] for clock in CLOCKS} for name in candidates}
    names = list(candidates)
    for number in range(-WARM_UP, turns):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            before = {clock: read() for clock, read in CLOCKS.items()}
            candidates[name]()
            if number >= 0:
                for clock, read in CLOCKS.items():
                    seconds[name][clock].append(read() - before[clock])
    return seconds


def times_as_long(one: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the ratios turn by turn, with its 95 % confidence interval."""
    ratios = sorted(a / b for a, b in zip(one, other, strict=True))
    reach = 0.98 * math.sqrt(len(ratios))  # binomial bounds on ranks: no distribution is assumed
    low, high = (ratios[min(max(round(len(ratios) / 2 + side * reach), 0), len(ratios) - 1)] for side in (-1, 1))
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Time the programs and print a table."""
    name = sys.argv[1] if len(sys.argv) > 1 else "medium"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 150
    cpudist.init("xla", device="cpu")
    width, batch = SIZES[name]
    inputs = torch.randn(batch, 32, width)
    programs = {
        ALONE: training(encoder(width).to("xla"), plain_step, inputs),
        "with cpudist": training(cpudist.wrap(encoder(width).to("xla")), cpudist.step, inputs),
        f"{ALONE}, again": training(encoder(width).to("xla"), plain_step, inputs),
    }
    seconds = take_turns(programs, turns)
    rows = [
        [
            program,
            f"{STEPS / statistics.median(own['wall clock']):.1f}",
            *(times_as_long(own[clock], seconds[ALONE][clock]) for clock in CLOCKS),
        ]
        for program, own in seconds.items()
    ]
    print(table([name, "steps/s", *CLOCKS], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
