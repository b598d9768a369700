"""A model whose optimizer is shared out trains as under DDP, step by step, and leaves the same checkpoints."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

import cpudist
from cpudist.errors import UserError

BACKEND, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS = 4
close = partial(torch.testing.assert_close, rtol=0, atol=1e-6)

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


class Net(torch.nn.Module):
    """Rows that divide by no number of ranks, tied weights, statistics, and parameters that are frozen or not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 6)
        self.hidden = torch.nn.Linear(6, 7)
        self.norm = torch.nn.BatchNorm1d(7)
        self.frozen = torch.nn.Linear(7, 7).requires_grad_(False)
        self.convolution = torch.nn.Conv2d(1, 6, 3, padding=1).to(memory_format=torch.channels_last)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.transposed = torch.nn.Parameter(torch.randn(6, 7).T)
        self.never = torch.nn.Linear(3, 3)
        self.sometimes = torch.nn.Linear(6, 6)
        self.decoder = torch.nn.Linear(6, 11)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, more: bool) -> torch.Tensor:
        x = self.frozen(self.norm(self.hidden(self.embedding(tokens)).tanh())) @ self.transposed
        x = self.convolution(x.reshape(-1, 1, 2, 3)).mean((2, 3)) * self.scale
        return self.decoder(self.sometimes(x) if more else x)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Tokens and labels of this rank; and whether it uses the layer that only one rank uses, in some steps."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    tokens, labels = torch.randint(11, (2, 8), generator=generator)
    return tokens, labels, step % 2 == 1 and dist.get_rank() == 0


def backward(model: torch.nn.Module, step: int) -> None:
    tokens, labels, more = batch(step)
    torch.nn.functional.cross_entropy(model(tokens, more), labels).backward()


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS, accumulated: int = 1, clip: float = 0
) -> Iterator[float]:
    """Train, and yield the norm of the gradients of each step."""
    for step in range(steps):
        for part in reversed(range(accumulated)):
            with model.no_sync() if part else nullcontext():
                backward(model, step + 10 * part)
        norm = clip_grad_norm_(model.parameters(), clip) if clip else torch.zeros(())
        yield float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        cpudist.step(optimizer)
        optimizer.zero_grad()


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """As people make it, with groups by the parameters' names."""
    named = dict(model.named_parameters())
    plain = [parameter for name, parameter in named.items() if name.endswith("bias")]
    decayed = [parameter for name, parameter in named.items() if not name.endswith("bias")]
    return torch.optim.AdamW([{"params": plain, "weight_decay": 0}, {"params": decayed}], lr=0.01)


MAKE: dict[str, Make] = {
    "adamw": adamw,
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
}


def both(make: Make, before: bool = False) -> list[tuple[torch.nn.Module, torch.optim.Optimizer]]:
    """The same model under DDP and sharded, with an optimizer that was made before or after wrapping."""
    pairs = []
    for options in ({"find_unused_parameters": True}, {"shard_optimizer": True}):
        module = Net()
        optimizer = make(module) if before else None
        model = cpudist.wrap(module, **options)
        pairs.append((model, optimizer or make(model)))
    return pairs


def check_same(pairs: list[tuple[torch.nn.Module, torch.optim.Optimizer]]) -> None:
    """Parameters, buffers and the whole state of the optimizers, under the same names."""
    (ddp, plain), (model, sharded) = pairs
    close(model.state_dict(), ddp.state_dict())
    close(sharded.state_dict(), plain.state_dict())


def check_optimizers() -> None:
    for make in MAKE.values():
        for before, accumulated, clip in ((False, 1, 0.0), (True, 1, 0.05), (False, 3, 0.05)):
            pairs = both(make, before)
            norms = [list(train(*pair, accumulated=accumulated, clip=clip)) for pair in pairs]
            close(norms[1], norms[0])
            check_same(pairs)


def check_gradients_are_zeroed() -> None:
    """zero_grad drops what no_sync has accumulated; otherwise gradients add up."""
    pairs = both(adamw)
    for model, optimizer in pairs:
        list(train(model, optimizer, steps=2))
        with model.no_sync():
            backward(model, 6)
        optimizer.zero_grad()
        backward(model, 8)
        backward(model, 9)
        with model.no_sync():
            backward(model, 10)
        backward(model, 11)
        optimizer.step()
    check_same(pairs)


def check_state_is_divided() -> None:
    model, optimizer = both(adamw)[1]
    list(train(model, optimizer))
    held = sum(state["exp_avg"].numel() for state in optimizer.state.values())
    whole = torch.tensor(held)
    dist.all_reduce(whole)
    assert int(whole) == sum(
        p.numel() for n, p in model.module.named_parameters() if p.requires_grad and "never" not in n
    )
    assert held < int(whole) * 0.7


def check_checkpoints() -> None:
    """States go from one to the other and back, into an optimizer that has stepped and into a new one."""
    pairs = both(adamw)
    for pair in pairs:
        list(train(*pair, steps=2))
    states = [copy.deepcopy((model.state_dict(), optimizer.state_dict())) for model, optimizer in reversed(pairs)]
    for stepped in (False, True):
        others = both(adamw)
        for (model, optimizer), (weights, state) in zip(others, states, strict=True):
            if stepped:
                list(train(model, optimizer, steps=1))
            model.load_state_dict(weights)
            optimizer.load_state_dict(copy.deepcopy(state))  # torch's own goes on in the memory that it is given
        check_same(others)
        for pair in (*pairs, *others):
            list(train(*pair, steps=1))
        check_same(others)
    alone = Net()
    alone.load_state_dict(pairs[1][0].module.state_dict())
    close(alone.state_dict(), pairs[0][0].module.state_dict())


def check_other_size() -> None:
    """Two ranks load what three have saved."""
    model, optimizer = both(adamw)[1]
    file = FOLDER / f"{BACKEND}.pt"
    if dist.get_world_size() == 3:
        list(train(model, optimizer))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if dist.get_rank() == 0:
            torch.save(state, file)
        return
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    close(model.state_dict(), saved["model"])
    alone = Net()
    plain = adamw(alone)
    alone.load_state_dict(model.module.state_dict())
    plain.load_state_dict(torch.load(file)["optimizer"])  # the other one goes on in the memory of what it was given
    for a, b in ((model, optimizer), (alone, plain)):  # the same gradients on all ranks
        for parameter in a.module.parameters() if a is model else a.parameters():
            if parameter.requires_grad:
                parameter.sum().backward()
        b.step()
    close(model.module.state_dict(), alone.state_dict())
    close(optimizer.state_dict(), plain.state_dict())


def check_refusals() -> None:
    def refused(what: str, call: Callable[[], object]) -> None:
        with pytest.raises(UserError, match=re.escape(what)):
            call()

    model, optimizer = both(adamw)[1]
    refused("takes no closure", lambda: optimizer.step(lambda: 0.0))
    refused("leave it out for LBFGS", lambda: torch.optim.LBFGS(model.parameters()).step())
    with model.no_sync():
        backward(model, 0)
    refused("after no_sync() alone", optimizer.step)
    refused("no DDP to take bucket_cap_mb", lambda: cpudist.wrap(Net(), shard_optimizer=True, bucket_cap_mb=1))
    rank = dist.get_rank()
    refused("another model", lambda: cpudist.wrap(torch.nn.Linear(2, 2 + rank), shard_optimizer=True))
    scalar = torch.nn.Linear(2, 2)
    scalar.scale = torch.nn.Parameter(torch.tensor(1.0))
    refused("torch.ones(1)", lambda: cpudist.wrap(scalar, shard_optimizer=True))


def main() -> None:
    world = cpudist.init(BACKEND, timeout=60)
    if world.size == 3:
        for check in (check_optimizers, check_gradients_are_zeroed, check_state_is_divided):
            check()
        check_checkpoints()
        check_refusals()
    check_other_size()
    dist.barrier()
    if world.rank == 0:
        print(f"shard_optimizer passed on {world.size} ranks of {world.backend}")
    cpudist.shutdown()


if __name__ == "__main__":
    main()
