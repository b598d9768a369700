"""Train small models by DDP and by FSDP2, save each step and go on: FOLDER STEPS [KILLED].

FSDP2 saves in the background, and is for ccl here. Each step has the same 12 samples on any number of ranks. On the
first attempt rank 0 kills itself while it saves step KILLED of the first model, on the second attempt that of the
second model.
CHECK_INIT has the arguments of `cpudist.init`, as JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import cpudist
from cpudist.checkpoints import folders

KINDS = ["plain", "fsdp"]
SAMPLES, FEATURES = 12, 6


def made(seed: int = 0, wrap: Callable[[Any], Any] = lambda model: model) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(FEATURES, 10), torch.nn.GELU(), torch.nn.Linear(10, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])


def loss_of(model: Any, step: int, world: cpudist.World | None = None) -> Any:
    """Return the loss of this rank's share of the samples of `step`; of all of them without a world."""
    share = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(step))
    if world is not None:
        share = share[world.rank :: world.size].to(world.device)
    return torch.nn.functional.mse_loss(model(share), share[:, :3].cumsum(1))


def _die_while_saving(kind: str, step: int) -> None:
    sync = folders.sync

    def die(folder: Path) -> None:
        if folder.name == f"checkpoint-{step}" and kind in str(folder):
            os.kill(os.getpid(), signal.SIGKILL)
        sync(folder)

    folders.sync = die


def _train(kind: str, folder: Path, steps: int, world: cpudist.World) -> Any:
    def wrap(model: Any) -> Any:
        if kind == "fsdp":
            return fully_shard(model)
        return cpudist.wrap(model.to(world.device))

    seed = 1 if (folder / kind).exists() else 0
    model, optimizer, schedule = made(seed, wrap)
    checkpoints = cpudist.Checkpoints(folder / kind, asynchronous=kind != "plain")
    begun = checkpoints.restore(model=model, optimizer=optimizer, schedule=schedule, taken=[])
    assert (begun > 0) == (seed > 0), "restored"
    taken = checkpoints.values["taken"]
    for step in range(begun + 1, steps + 1):
        optimizer.zero_grad()
        loss_of(model, step, world).backward()
        cpudist.step(optimizer)
        schedule.step()
        taken = [*taken, step]
        checkpoints.save(step, model=model, optimizer=optimizer, schedule=schedule, taken=taken)
    assert taken == list(range(1, steps + 1)), taken
    cpudist.save(folder / f"last-{kind}", model=model)
    return model


def _expected(steps: int) -> Any:
    model, optimizer, schedule = made()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        schedule.step()
    return model


def main() -> None:
    """Run both trainings, and compare their parameters with those of a single process."""
    world = cpudist.init(**json.loads(os.environ.get("CHECK_INIT", "{}")))
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    attempt = int(os.environ.get("CPUDIST_RESTART_COUNT", "0"))
    if len(sys.argv) > 3 and world.rank == 0 and attempt < 2:
        _die_while_saving(KINDS[attempt], int(sys.argv[3]))
    for kind in KINDS if world.backend == "ccl" else KINDS[:1]:
        model = _train(kind, folder, steps, world)
        loaded = made(seed=2)[0]
        cpudist.load(folder / f"last-{kind}", model=loaded)
        # The training came first: torch's first backward pass makes a queue for each device that it finds.
        expected = _expected(steps).state_dict()
        for found in (model, loaded):
            for name, value in getattr(found, "module", found).state_dict().items():
                whole = value.full_tensor() if isinstance(value, DTensor) else value.cpu()
                torch.testing.assert_close(whole, expected[name], rtol=1e-4, atol=1e-5)
    if world.rank == 0:
        print(f"{steps} steps passed")
    cpudist.shutdown()


if __name__ == "__main__":
    main()
