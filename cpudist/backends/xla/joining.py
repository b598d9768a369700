"""How the ranks of a job come together on xla: over the host, or connected by the runtime itself."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from cpudist.changes import Changes
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.rendezvous import exchange

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.backends.xla.host import HostCcl, HostGloo
    from cpudist.world import World


def place(world: World, store: Store, timeout: float) -> dict[str, Any]:
    """What torch's `init_process_group` is to be told of this rank."""
    return {"store": store, "rank": world.rank, "world_size": world.size, "timeout": timedelta(seconds=timeout)}


def agree_on_host(world: World, store: Store, timeout: float) -> HostCcl | HostGloo:
    """The fastest way between hosts that every rank has."""
    from cpudist.backends.xla.host import HOSTS

    hosts = [make() for make in HOSTS.values()]
    reasons = exchange(store, world.rank, world.size, "xla/ccl", hosts[0].unavailable() or "", timeout)
    reason = next((f"rank {rank} says: {text}" for rank, text in enumerate(reasons) if text), None)
    if reason is not None and world.rank == 0 and world.size > 1:
        say(f"warning: xla sends gradients over gloo and not over ccl, {reason}")
    return hosts[0] if reason is None else hosts[1]


def join_runtime(world: World) -> None:
    """Where the runtime connects devices itself, its own process group is the job's; it numbers the ranks.

    Raises:
        UserError: it has not connected as many as the launcher has started.
    """
    import torch_xla.distributed.xla_backend  # noqa: F401 - registers "xla" with torch
    from torch_xla import runtime

    changes = Changes()
    if world.size > 1:
        for name, value in _as_torchrun_sets_them(world).items():
            changes.default_variable(name, value)
    try:
        # First of all: it tells the runtime which device is this process's, and the runtime remembers what it says.
        dist.init_process_group("xla", init_method="xla://")
    finally:
        changes.undo()
    connected = dist.get_world_size(), runtime.process_count()
    if connected != (world.size, world.size):
        raise UserError(
            f"the runtime has connected {connected[0]} devices of {connected[1]} processes, and this job has "
            f"{world.size} ranks ({world.launcher}); start one rank for each device, or one process of each host with "
            "--mesh"
        )


def _as_torchrun_sets_them(world: World) -> dict[str, str]:
    """By which the runtime finds a rank's place: it knows of no launcher but torchrun."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "MASTER_ADDR": world.hosts[0],
        "TORCHELASTIC_RUN_ID": "cpudist",
    }
