"""Times of a training step across hosts under what spares a slow network, beside gloo and beside no communication.

Each contender trains a BERT of its own, 4 x 128 tokens per rank. A turn of hosts that train apart is as long as one
round of theirs, and begins and ends between two exchanges, so it has all the work of one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cpudist import api, job
from cpudist.bench import workload
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import CCL, GLOO, Candidate, Timings, Turns, both_groups, ratio, take_turns, timed, together
from cpudist.errors import UserError
from cpudist.optimization import local_steps, precision

if TYPE_CHECKING:
    from cpudist.world import World

ALONE = "no communication"
# By name: the group, and the scheme of gradients or the number of steps between two exchanges.
CONTENDERS: dict[str, tuple[str, str | int]] = {
    ALONE: (CCL, "none"),
    **{scheme: (CCL, scheme) for scheme in ("none", "bf16", "int8", "powersgd")},
    **{f"sync-every {every}": (CCL, every) for every in (8, 32)},
    "gloo": (GLOO, "none"),
    "gloo, powersgd": (GLOO, "powersgd"),
}
_SHAPE: workload.Shape = (4, 128)
_DTYPES = (torch.float32, torch.bfloat16)
_WARM_UP = {"powersgd": 12}  # steps; it begins to compress after the tenth one, and DDP settles after its first one
_FULL = Turns(rounds=3, calls=3, warm_up=0, means=True)
_QUICK = Turns(rounds=2, calls=1, warm_up=0, means=True)


@dataclass(frozen=True)
class HostTimes:
    """Times of a step by its type and by contender."""

    steps: dict[str, dict[str, Timings]]

    def table(self) -> str:
        """Return one block of lines for each type."""
        return "\n\n".join(
            f"training step, {dtype}\n"
            + table(
                ["", "time", f"of {ALONE}"],
                [[name, time_cell(one), ratio_cell(ratio(one, timings[ALONE]))] for name, one in timings.items()],
            )
            for dtype, timings in self.steps.items()
        )

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [
            {
                "dtype": dtype,
                "seconds": {name: one.as_dict() for name, one in timings.items()},
                "ratios": {f"{name}/{ALONE}": ratio(one, timings[ALONE]).as_dict() for name, one in timings.items()},
            }
            for dtype, timings in self.steps.items()
        ]

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars of each type."""
        return {f"training step, {dtype}, in seconds": timings for dtype, timings in self.steps.items()}


def run(world: World, say: Callable[[str], None], quick: bool = False, only: Sequence[str] = ()) -> HostTimes:
    """Measure on every rank of a job, and return the same figures on all ranks.

    Args:
        world: the job's ranks.
        say: is called with the progress, in words.
        quick: measure little, as a smoke test.
        only: the contenders beside `ALONE`; empty for all.

    Raises:
        UserError: all ranks are on one host.
    """
    if world.node_count == 1:
        raise UserError("bench hosts is about the network between hosts; start it as: mpirun -f hostfile -n 2 -ppn 1 …")
    shape, groups = workload.SMALL if quick else _SHAPE, both_groups()
    say(workload.describe(workload.bert(), shape))
    steps = {}
    for dtype in _DTYPES[: 1 if quick else None]:
        name = precision.name(dtype)
        gc.collect()  # the models of the last type
        candidates = {}
        for contender in (ALONE, *(only or list(CONTENDERS)[1:])):
            say(f"{name}, warming up: {contender}")
            tokens = workload.tokens(world.rank, shape)
            candidates[contender] = together(_contender(contender, groups, tokens, dtype), groups[GLOO])
        turns = _QUICK if quick else _FULL
        steps[name] = take_turns(candidates, turns, lambda progress: say(f"{name}, {progress}"))  # noqa: B023
    return HostTimes(steps)


def _contender(name: str, groups: dict[str, dist.ProcessGroup], tokens: torch.Tensor, dtype: torch.dtype) -> Candidate:
    """Return a candidate that trains a model of its own, after its warm-up."""
    backend, what = CONTENDERS[name]
    plain = workload.bert()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    if isinstance(what, int):
        model: Any = api.wrap(plain, sync_every=what, compress="none")
    else:
        model = DistributedDataParallel(plain, process_group=groups[backend], gradient_as_bucket_view=True)
        job.require().backend.compress(model, what)

    def step() -> None:
        with model.no_sync() if name == ALONE else nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            workload.update(loss, optimizer)

    measure = timed(step)
    measure(_WARM_UP.get(str(what), 3))
    if not isinstance(what, int):
        return measure
    every, local = what, local_steps.of(plain)
    assert local is not None
    local.synchronize()
    measure(every // 2)
    return lambda calls: measure(every)
