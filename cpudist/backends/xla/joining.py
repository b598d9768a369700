"""How the ranks of a job meet on xla: through the host, connected by the runtime itself, or as workers of a TPU pod."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import constants, distributed_c10d

from cpudist.changes import Changes
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.rendezvous import all_gather

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.backends.xla.group import HostCcl, HostGloo
    from cpudist.world import World

_POD_PORT = "12355"  # the runtime's own default


def bound_new_groups(seconds: float | None) -> None:
    """Set the timeout of groups that are made without one; None restores torch's, which is half an hour."""
    limit = constants.default_pg_timeout if seconds is None else timedelta(seconds=seconds)
    distributed_c10d.default_pg_timeout = limit


def make_group(backend: str, world: World, store: Store, timeout: float) -> None:
    """Make the default process group on a backend that torch knows by this name."""
    seconds = timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=seconds)


def agree_on_host(world: World, store: Store, timeout: float) -> HostCcl | HostGloo:
    """Return the fastest backend between hosts that every rank can use: ccl, else gloo with one warning line."""
    from cpudist.backends.xla.group import HostCcl, HostGloo

    ccl = HostCcl()
    reasons = all_gather(store, world.rank, world.size, "xla/ccl", ccl.unavailable() or "", timeout)
    reason = next((f"rank {rank} says: {text}" for rank, text in enumerate(reasons) if text), None)
    if reason is None:
        return ccl
    if world.rank == 0 and world.size > 1:
        say(f"warning: xla sends gradients over gloo and not over ccl, {reason}")
    return HostGloo()


def join_runtime(world: World) -> None:
    """Make the runtime's own process group the job's, where the runtime connects the devices and numbers the ranks.

    Raises:
        UserError: it has not connected as many ranks as the launcher has started.
    """
    import torch_xla.distributed.xla_backend  # noqa: F401 - registers "xla" with torch
    from torch_xla import runtime

    changes = Changes()
    if world.size > 1:
        for name, value in _torchrun_variables(world).items():
            changes.default_variable(name, value)
    try:
        # Before any question to the runtime: this names the process's device, and the runtime keeps its first answer.
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


def pod_worker() -> dict[str, str]:
    """Return this TPU pod worker's place as torchrun would set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    The workers are started alike; the runtime knows how many there are and which one this is. Blocks until all have
    started. Empty where this worker is alone.

    Source: PyTorch/XLA 2.8, docs/source/learn/pjrt.md ("TPU pods") and torch_xla/runtime.py.
    """
    from torch_xla import runtime

    from cpudist.backends.xla.sharding import become_one_program

    changes = Changes()
    try:
        with changes.environment():
            os.environ["PJRT_DEVICE"] = "TPU"
            become_one_program()  # a process of a mesh has all chips of its host; the runtime finds host 0 by them
            if runtime.process_count() == 1:
                return {}
            return {
                "RANK": str(runtime.process_index()),
                "WORLD_SIZE": str(runtime.process_count()),
                "MASTER_ADDR": runtime.get_master_ip(),
                "MASTER_PORT": os.environ.get("MASTER_PORT", _POD_PORT),
            }
    finally:
        changes.undo()


def _torchrun_variables(world: World) -> dict[str, str]:
    """Return torchrun's variables of this rank: torchrun is the only launcher that the runtime knows."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "MASTER_ADDR": world.hosts[0],
        "TORCHELASTIC_RUN_ID": "cpudist",
    }
