"""Measure a training step across hosts, with each option for slow networks, on gloo, and without communication.

Each candidate trains its own BERT with 4 x 128 tokens per rank. `cpudist.wrap` makes its DDP; on gloo, torch's DDP is
used directly.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cpudist import api, job
from cpudist.bench.report import Comparison
from cpudist.bench.timing import ALONE, CCL, GLOO, Candidate, Turns, both_groups, take_turns, timed, together
from cpudist.errors import UserError
from cpudist.optimization import precision
from cpudist.world import World

CANDIDATES: dict[str, tuple[str, str]] = {  # name -> (process group, compression of gradients)
    ALONE: (CCL, "none"),
    **{scheme: (CCL, scheme) for scheme in ("auto", "none", "bf16", "int8", "powersgd")},
    "gloo": (GLOO, "none"),
    "gloo, powersgd": (GLOO, "powersgd"),
}
_FULL_SHAPE, SMALL_SHAPE = (4, 128), (2, 64)  # samples per rank, tokens per sample
_VOCABULARY = 30522
_DTYPES = (torch.float32, torch.bfloat16)
# Warm-up steps. DDP rebuilds its buckets after the first step, `auto` chooses after the fifth, and PowerSGD begins
# after the tenth.
_WARM_UP = {"auto": 12, "powersgd": 12}
_FULL = Turns(rounds=3, calls=3, warm_up=0)
_QUICK = Turns(rounds=2, calls=1, warm_up=0)


def run(world: World, say: Callable[[str], None], quick: bool = False, only: Sequence[str] = ()) -> list[Comparison]:
    """Measure `ALONE`, and all other candidates or those in `only`. All ranks, on several hosts, must call this."""
    if world.node_count == 1:
        raise UserError("bench hosts is about the network between hosts; start it as: mpirun -f hostfile -n 2 -ppn 1 …")
    shape = SMALL_SHAPE if quick else _FULL_SHAPE
    millions = sum(parameter.numel() for parameter in bert().parameters()) / 1e6
    say(f"BERT with {millions:.1f} million parameters, {shape[0]} x {shape[1]} tokens per rank")
    tokens, groups, turns = random_tokens(world.rank, shape), both_groups(CCL), _QUICK if quick else _FULL
    found, names = [], (ALONE, *(only or list(CANDIDATES)[1:]))
    for dtype in _DTYPES[: 1 if quick else None]:
        name = precision.name(dtype)
        candidates: dict[str, Candidate] = {}
        for candidate in names:
            say(f"{name}, warming up: {candidate}")
            candidates[candidate] = together(_training(candidate, groups, tokens, dtype), groups[GLOO])
        times = take_turns(candidates, turns, say)
        found.append(Comparison("training step", name, times, tuple((each, ALONE) for each in times)))
        del candidates
        gc.collect()  # frees the models
    return found


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
    model.tie_weights()  # on some devices the move separates tied parameters
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


def _training(name: str, groups: dict[str, dist.ProcessGroup], tokens: torch.Tensor, dtype: torch.dtype) -> Candidate:
    """Return a candidate that trains a model of its own, after its warm-up."""
    backend, scheme = CANDIDATES[name]
    plain = bert()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    if backend == CCL:
        model: Any = api.wrap(plain, compress=scheme)
    else:
        model = DistributedDataParallel(
            plain, process_group=groups[backend], bucket_cap_mb=25, gradient_as_bucket_view=True
        )
        job.require().backend.compress(model, scheme)

    def step() -> None:
        with model.no_sync() if name == ALONE else nullcontext():
            train_on(tokens, model, optimizer, dtype)

    measure = timed(step)
    measure(_WARM_UP.get(scheme, 3))
    return measure
