"""Times of a training step across hosts: with each option for slow networks, on gloo, and without communication.

Each candidate trains a BERT of its own, 4 x 128 tokens per rank: in DDP as `cpudist.wrap` makes it, and on gloo in DDP
with torch's defaults.

The column "hidden" is the share of communication that overlaps with computing: 1 if a step takes as long as one without
communication, 0 if the time to average all gradients comes on top of it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from cpudist import api, job
from cpudist.backends.ccl.ccl_group import WireOptions
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import (
    CCL,
    GLOO,
    Candidate,
    Timings,
    Turns,
    both_groups,
    ratio,
    take_turns,
    timed,
    together,
)
from cpudist.errors import UserError
from cpudist.optimization import precision

if TYPE_CHECKING:
    from cpudist.world import World

ALONE = "no communication"
_WHOLE = "bf16, tied weight whole"  # without backends/embedding_rows.py
# By name: the group, and the compression of gradients.
CANDIDATES: dict[str, tuple[str, str]] = {
    ALONE: (CCL, "none"),
    **{scheme: (CCL, scheme) for scheme in ("auto", "none", "bf16", "int8", "powersgd")},
    _WHOLE: (CCL, "bf16"),
    "gloo": (GLOO, "none"),
    "gloo, fp16": (GLOO, "fp16"),  # torch's hook
    "gloo, powersgd": (GLOO, "powersgd"),
}
_AVERAGED = ("none", "bf16", "int8", "gloo")  # candidates whose averaging is also timed alone
_FULL_SHAPE, SMALL_SHAPE = (4, 128), (2, 64)  # samples per rank, tokens per sample
_VOCABULARY = 30522
_DTYPES = (torch.float32, torch.bfloat16)
# In steps. DDP rebuilds its buckets after its first one, `auto` chooses after the fifth, PowerSGD begins after the
# tenth.
_WARM_UP = {"auto": 12, "powersgd": 12}
_FULL = Turns(rounds=3, calls=3, warm_up=0)
_QUICK = Turns(rounds=2, calls=1, warm_up=0)


@dataclass(frozen=True)
class HostTimes:
    """Times of a step, by type and candidate, and of averaging alone."""

    steps: dict[str, dict[str, Timings]]
    averages: dict[str, dict[str, Timings]]

    def table(self) -> str:
        """Return one block of lines for each type."""
        head = ["", "time", f"of {ALONE}", "the average by itself", "hidden"]
        return "\n\n".join(
            f"training step, {dtype}\n" + table(head, [self._row(dtype, name) for name in timings])
            for dtype, timings in self.steps.items()
        )

    def _row(self, dtype: str, name: str) -> list[str]:
        step, alone, average = self.steps[dtype][name], self.steps[dtype][ALONE], self.averages[dtype].get(name)
        cells = [name, time_cell(step), ratio_cell(ratio(step, alone))]
        return [*cells, *([time_cell(average), f"{_hidden(alone, average, step):.2f}"] if average else ["", ""])]

    def as_list(self) -> list[dict[str, Any]]:
        """Return the figures for JSON."""
        return [
            {
                "dtype": dtype,
                "seconds": {name: one.as_dict() for name, one in timings.items()},
                "ratios": {f"{name}/{ALONE}": ratio(one, timings[ALONE]).as_dict() for name, one in timings.items()},
                "averages": {name: one.as_dict() for name, one in self.averages[dtype].items()},
            }
            for dtype, timings in self.steps.items()
        ]

    def panels(self) -> dict[str, dict[str, Timings]]:
        """Return the bars of each type."""
        return {f"training step, {dtype}, in seconds": timings for dtype, timings in self.steps.items()}


def run(world: World, say: Callable[[str], None], quick: bool = False, only: Sequence[str] = ()) -> HostTimes:
    """Measure on every rank of a job, and return the same figures on all ranks.

    Args:
        only: the candidates besides `ALONE`; empty for all.

    Raises:
        UserError: all ranks are on one host.
    """
    if world.node_count == 1:
        raise UserError("bench hosts is about the network between hosts; start it as: mpirun -f hostfile -n 2 -ppn 1 …")
    shape = SMALL_SHAPE if quick else _FULL_SHAPE
    say(f"BERT with {_size_of_bert() / 1e6:.1f} million parameters, {shape[0]} x {shape[1]} tokens per rank")
    tokens, groups, turns = random_tokens(world.rank, shape), both_groups(CCL), _QUICK if quick else _FULL
    times, names = HostTimes({}, {}), only or list(CANDIDATES)[1:]
    for dtype in _DTYPES[: 1 if quick else None]:
        name = precision.name(dtype)
        times.steps[name], times.averages[name] = _compare(dtype, tokens, groups, names, turns, say)
        gc.collect()  # its models
    return times


def bert(device: torch.device | str = "cpu") -> torch.nn.Module:
    """Return a BERT with 24.5 million parameters in training mode, the same on every rank and at every call."""
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = BertConfig(
        vocab_size=_VOCABULARY, hidden_size=384, num_hidden_layers=7, num_attention_heads=12, intermediate_size=4 * 384
    )
    torch.manual_seed(0)
    model: Any = BertForMaskedLM(config).train().to(device)
    model.tie_weights()  # moving them to some devices makes two parameters of a tied one
    return model  # type: ignore[no-any-return]


def random_tokens(rank: int, shape: tuple[int, int] = SMALL_SHAPE) -> torch.Tensor:
    """Return one rank's batch of this shape, which serves as its labels too."""
    return torch.randint(_VOCABULARY, shape, generator=torch.Generator().manual_seed(rank))


def train_on(tokens: torch.Tensor, model: Any, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
    """Make one step with a batch of `random_tokens`, and wait for it; under autocast if `dtype` is bfloat16."""
    devices = job.require().backend.devices
    with torch.autocast(devices.type, dtype=dtype) if dtype is torch.bfloat16 else nullcontext():
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    devices.synchronize()


def _size_of_bert() -> int:
    return sum(parameter.numel() for parameter in bert().parameters())


def _compare(
    dtype: torch.dtype,
    tokens: torch.Tensor,
    groups: dict[str, dist.ProcessGroup],
    names: Sequence[str],
    turns: Turns,
    say: Callable[[str], None],
) -> tuple[dict[str, Timings], dict[str, Timings]]:
    """Return the times of a step of `ALONE` and of the named candidates, and of their averaging alone."""
    name = precision.name(dtype)
    candidates: dict[tuple[str, str], Candidate] = {}
    for candidate in (ALONE, *names):
        say(f"{name}, warming up: {candidate}")
        candidates["step", candidate] = together(_training(candidate, groups, tokens, dtype), groups[GLOO])
        if candidate in _AVERAGED:
            candidates["average", candidate] = together(_average_of(candidate, groups), groups[GLOO])
    timings = take_turns(candidates, turns, lambda progress: say(f"{name}, {progress}"))
    steps = {candidate: one for (what, candidate), one in timings.items() if what == "step"}
    return steps, {candidate: one for (what, candidate), one in timings.items() if what == "average"}


def _hidden(alone: Timings, average: Timings, step: Timings) -> float:
    """Return the median over the rounds of the share of the average that a step hides."""
    rounds = zip(alone.by_round, average.by_round, step.by_round, strict=True)
    return statistics.median((a + w - s) / w for a, w, s in rounds)


def _average_of(name: str, groups: dict[str, dist.ProcessGroup]) -> Candidate:
    values = torch.zeros(_size_of_bert())
    if name == GLOO:
        group = groups[GLOO]
    else:
        group = groups[CCL] if name == "none" else dist.new_group(backend=CCL, pg_options=WireOptions(name))
    return timed(lambda: dist.all_reduce(values, group=group))


def _training(name: str, groups: dict[str, dist.ProcessGroup], tokens: torch.Tensor, dtype: torch.dtype) -> Candidate:
    """Return a candidate that trains a model of its own, after its warm-up."""
    backend, scheme = CANDIDATES[name]
    plain = bert()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    own = job.require().backend
    if name == _WHOLE:
        model: Any = own.wrap(plain)
        own.compress(model, scheme)
    elif backend == CCL:
        model = api.wrap(plain, compress=scheme)
    else:
        model = DistributedDataParallel(plain, process_group=groups[backend], gradient_as_bucket_view=True)
        if scheme == "fp16":
            model.register_comm_hook(groups[backend], default_hooks.fp16_compress_hook)
        else:
            own.compress(model, scheme)

    def step() -> None:
        with model.no_sync() if name == ALONE else nullcontext():
            train_on(tokens, model, optimizer, dtype)

    measure = timed(step)
    measure(_WARM_UP.get(scheme, 3))
    return measure
