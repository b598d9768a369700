"""How long a training step takes under what `cpudist.optimize` can choose, and under Intel's own recipe.

A step is forward, backward with gradients reduced by the job's backend, and optimizer. What is fastest here is what
`optimize` has to choose by default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist import optimization, session
from cpudist.bench import table, workload
from cpudist.bench.measure import timed, together
from cpudist.bench.timing import Timings, Turns, ratio, take_turns
from cpudist.optimization import ipex

if TYPE_CHECKING:
    from cpudist.world import World

_FULL = Turns(rounds=5, calls=4, warm_up=2)
_QUICK = Turns(rounds=2, calls=1, warm_up=1)

_NATIVE, _INTEL = "PyTorch's own kernels", "Intel's extension"
_PLAIN = "float32, as PyTorch makes it"
_RECIPE = "Intel's recipe: bfloat16, weights prepacked, autocast"
_BF16 = torch.bfloat16
_CHOICES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16, autocast": {"dtype": _BF16, "autocast": True},
    "bfloat16, master weights (the default)": {"dtype": _BF16},
}
_COMPILED: dict[str, dict[str, Any]] = {
    "bfloat16, master weights, compiled": {"dtype": _BF16, "compile": True},
}


@dataclass(frozen=True)
class TrainTimes:
    """A step's times by what was chosen; every one of a part took turns with the others of that part."""

    parts: dict[str, dict[str, Timings]]

    def table(self) -> str:
        """One block of lines per part."""
        return "\n\n".join(f"training step, {name}\n{_block(part)}" for name, part in self.parts.items())

    def as_list(self) -> list[dict[str, Any]]:
        return [{"kernels": name, **_as_dict(part)} for name, part in self.parts.items()]


def run(world: World, say: Callable[[str], None], quick: bool = False) -> TrainTimes:
    """Measure on every rank of `world`; all ranks return the same figures. `say` is told how far it is."""
    say(workload.describe(workload.bert()))
    if not quick:
        say("compiling one of the contenders takes a minute or two")
    choices = _CHOICES if quick else {**_CHOICES, **_COMPILED}
    native = {name: {**options, "ipex": False} for name, options in choices.items()}
    parts = {_NATIVE: _measure(world, native, say, quick)}
    # In this order: once Intel's extension is imported its kernels serve everybody in the process.
    if ipex.missing() is None:
        parts[_INTEL] = _measure(world, _CHOICES, say, quick, intels_recipe=True)
    return TrainTimes(parts)


def _measure(
    world: World,
    choices: dict[str, dict[str, Any]],
    say: Callable[[str], None],
    quick: bool,
    intels_recipe: bool = False,
) -> dict[str, Timings]:
    steps = {_PLAIN: _Training(world.rank).step}
    steps |= {name: _Training(world.rank, options).step for name, options in choices.items()}
    if intels_recipe:
        steps[_RECIPE] = _Training(world.rank, intels_recipe=True).step
    group = dist.new_group(backend="gloo")
    contenders = {name: together(timed(step), group) for name, step in steps.items()}
    return take_turns(contenders, _QUICK if quick else _FULL, say)


class _Training:
    """A model of its own with its optimizer, on this rank's batch."""

    def __init__(self, rank: int, options: dict[str, Any] | None = None, intels_recipe: bool = False) -> None:
        model = workload.bert()
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        self._context: Callable[[], AbstractContextManager[Any]] = nullcontext
        if options is not None:
            optimization.optimize(model, self._optimizer, **{**options, "compile": False})
        if intels_recipe:
            for group in self._optimizer.param_groups:
                group["fused"] = True
            extension: Any = __import__(ipex.PACKAGE)
            extension.optimize(model, dtype=_BF16, optimizer=self._optimizer, inplace=True)
            self._context = partial(torch.autocast, "cpu", dtype=_BF16)
        self._model = session.wrap(model)
        if options is not None and options.get("compile"):
            self._model.compile()
        self._tokens = workload.tokens(rank)

    def step(self) -> None:
        with self._context():
            loss = self._model(input_ids=self._tokens, labels=self._tokens).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def _as_dict(part: dict[str, Timings]) -> dict[str, Any]:
    return {
        "seconds": {choice: timings.as_dict() for choice, timings in part.items()},
        "ratios": {f"{_PLAIN}/{choice}": ratio(part[_PLAIN], one).as_dict() for choice, one in part.items()},
    }


def _block(part: dict[str, Timings]) -> str:
    plain = part[_PLAIN]
    rows = [[name, table.time_cell(one), table.ratio_cell(ratio(plain, one))] for name, one in part.items()]
    return table.render(["", "time", "times as fast"], rows)
