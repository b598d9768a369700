"""What cpudist costs on xla: steps of a program written for PyTorch/XLA alone, and of the same with cpudist.

    python scripts/xla_overhead.py [small|medium|large]

Both train in this one process and take turns, so that whatever else the machine does hits both alike; the first does so
twice, which shows what a ratio means here. One process, since several CPU ones do not train together without cpudist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch_xla

import cpudist
from cpudist.bench import table
from cpudist.bench.measure import timed
from cpudist.bench.timing import Turns, ratio, take_turns

STEPS = 5  # of a call, at whose end the device is done
ALONE = "PyTorch/XLA alone"
SIZES = {"small": (64, 8), "medium": (128, 16), "large": (256, 32)}  # width of the model, and samples of a batch


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """As PyTorch/XLA's documentation ends a step."""
    optimizer.step()
    torch_xla.sync()


def training(
    model: torch.nn.Module, step: Callable[[torch.optim.Optimizer], None], inputs: torch.Tensor
) -> Callable[[], None]:
    """A call that trains `model` for some steps, each ended by `step`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def call() -> None:
        for _ in range(STEPS):
            loss = model(inputs.to("xla")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step(optimizer)
        torch_xla.sync(wait=True)

    return call


def encoder(width: int) -> torch.nn.Module:
    """Two layers of a Transformer, without dropout."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "medium"
    cpudist.init("xla", device="cpu")
    width, batch = SIZES[name]
    inputs = torch.randn(batch, 32, width)
    alone = training(encoder(width).to("xla"), plain_step, inputs)
    ours = training(cpudist.wrap(encoder(width).to("xla")), cpudist.step, inputs)
    calls = {ALONE: alone, "with cpudist": ours, f"{ALONE}, again": alone}
    timings = take_turns({name: timed(call) for name, call in calls.items()}, Turns(rounds=15, calls=4, warm_up=1))
    rows = [
        [name, f"{STEPS / one.median:.1f}", table.ratio_cell(ratio(one, timings[ALONE]))]
        for name, one in timings.items()
    ]
    print(table.render([name, "steps/s", "time of a step"], rows), flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
