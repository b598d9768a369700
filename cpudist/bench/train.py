"""Times of a training step under the options of `cpudist.optimize`, and under Intel's own recipe.

A step is forward, backward with gradients reduced by the job's backend, and optimizer. By default `optimize` takes what
is fastest here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.bench import workload
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import Timings, Turns, ratio, take_turns, timed, together
from cpudist.optimization import ipex, native, optimize, products

if TYPE_CHECKING:
    from cpudist.world import World

_FULL = Turns(rounds=5, calls=2, warm_up=1)
_QUICK = Turns(rounds=2, calls=1, warm_up=1)

_LARGE: workload.Shape = (8, 128)

_GIVEN, _KEPT, _INTEL = "freed memory goes back to the kernel", "freed memory is kept", "Intel's extension, memory kept"
_PLAIN = "float32, as PyTorch makes it"
_RECIPE = "Intel's recipe: bfloat16, weights prepacked, autocast"
_BF16 = torch.bfloat16
_CHOICES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16, autocast": {"dtype": _BF16, "autocast": True},
    "bfloat16, master weights": {"dtype": _BF16},
}
_COMPILED: dict[str, dict[str, Any]] = {
    "bfloat16, master weights, compiled": {"dtype": _BF16, "compile": True},
}


@dataclass(frozen=True)
class TrainTimes:
    """Times of a step by part and choice. The choices of a part took turns; the parts ran one after the other.

    The first choice of the first part is PyTorch without `optimize`.
    """

    parts: dict[str, dict[str, Timings]]

    @property
    def plain(self) -> Timings:
        """Times of PyTorch without `optimize`."""
        return next(iter(next(iter(self.parts.values())).values()))

    def table(self) -> str:
        """Return one block of lines for each part."""
        return "\n\n".join(f"training step, {name}\n{self._block(part)}" for name, part in self.parts.items())

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [
            {
                "part": name,
                "seconds": {choice: timings.as_dict() for choice, timings in part.items()},
                "ratios": {f"{_PLAIN}/{choice}": ratio(self.plain, one).as_dict() for choice, one in part.items()},
            }
            for name, part in self.parts.items()
        ]

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars of each part."""
        return {f"training step, {name}, in seconds": part for name, part in self.parts.items()}

    def _block(self, part: dict[str, Timings]) -> str:
        rows = [[name, time_cell(one), ratio_cell(ratio(self.plain, one))] for name, one in part.items()]
        return table(["", "time", "times as fast"], rows)


def run(world: World, say: Callable[[str], None], quick: bool = False) -> TrainTimes:
    """Measure on every rank of a job, and return the same figures on all ranks.

    Args:
        world: the job's ranks.
        say: is called with the progress, in words.
        quick: measure little, as a smoke test.
    """
    shape = workload.SMALL if quick else _LARGE
    say(workload.describe(workload.bert(), shape))
    if not quick:
        say("compiling one of the candidates takes a minute or two")

    def take_all(choices: dict[str, Any]) -> dict[str, Timings]:
        group = dist.new_group(backend="gloo")
        steps = {name: _training(world.rank, shape, choice) for name, choice in choices.items()}
        candidates = {name: together(timed(step), group) for name, step in steps.items()}
        return take_turns(candidates, _QUICK if quick else _FULL, say)

    # The order matters: changes to the allocator, and by importing Intel's extension, cannot be undone in this process.
    parts = {_GIVEN: take_all({_PLAIN: None, **_each(_CHOICES, ipex=False, keep_memory=False)})}
    parts[_KEPT] = take_all(_each(_CHOICES if quick else {**_CHOICES, **_COMPILED}, ipex=False))
    if ipex.missing() is None:
        parts[_INTEL] = take_all(
            _CHOICES if products.missing() else {**_CHOICES, _RECIPE: _RECIPE}
        )  # refuses such CPUs
    return TrainTimes(parts)


def _each(choices: dict[str, dict[str, Any]], **also: Any) -> dict[str, dict[str, Any]]:
    return {name: {**options, **also} for name, options in choices.items()}


def _training(rank: int, shape: workload.Shape, choice: dict[str, Any] | str | None) -> Callable[[], None]:
    """Return the step of a model of its own, on this rank's batch.

    Args:
        rank, shape: as for `workload.tokens`.
        choice: options of `optimize`, `_RECIPE`, or None for PyTorch alone.
    """
    model: Any = workload.bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    options, autocast = {}, torch.float32  # `optimize` has an autocast of its own
    if isinstance(choice, dict):
        options = choice
        optimize(model, optimizer, **{**options, "compile": False})
    elif choice == _RECIPE:
        autocast = _BF16
        native.fuse(optimizer)
        __import__(ipex.PACKAGE).optimize(model, dtype=_BF16, optimizer=optimizer, inplace=True)
    model = job.require().backend.wrap(model)
    if options.get("compile"):
        model.compile()
    return partial(workload.train_on, workload.tokens(rank, shape), model, optimizer, autocast)
