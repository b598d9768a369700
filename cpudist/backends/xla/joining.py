"""How the ranks of a job meet on xla: through the host, connected by the runtime itself, or as workers of a TPU pod."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import torch.distributed as dist

from cpudist import backends
from cpudist.changes import Changes
from cpudist.errors import UserError
from cpudist.launchers.env import Env
from cpudist.rendezvous import all_gather

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.backends.process_group import ProcessGroupBackend
    from cpudist.world import World

_POD_PORT = "12355"  # the runtime's own default


def agree_on_host(world: World, store: Store, timeout: float) -> ProcessGroupBackend:
    """Return the fastest backend between hosts that every rank can use: ccl, else gloo with one warning line."""

    def ask_everyone(key: str, own: str) -> list[str]:
        return all_gather(store, world.rank, world.size, key, own, timeout)

    found = backends.first_usable(backends.AUTO, {}, ask_everyone, is_main_process=world.rank == 0 and world.size > 1)
    return cast("ProcessGroupBackend", found)


def join_runtime(world: World) -> None:
    """Let the runtime connect the devices of all ranks. Call it before any other question to the runtime.

    Raises:
        UserError: it has not connected as many ranks as the launcher has started, or it numbers them differently.
    """
    from torch_xla import runtime

    if world.size > 1:
        changes = Changes()
        for name, value in _torchrun_variables(world).items():
            changes.default_variable(name, value)
        try:
            # The runtime names the process's device here, and keeps its first answer; its own store is not used.
            next(dist.rendezvous("xla://"))
        finally:
            changes.undo()
    connected = runtime.world_size(), runtime.process_count()
    if connected != (world.size, world.size):
        raise UserError(
            f"the runtime has connected {connected[0]} devices of {connected[1]} processes, and this job has "
            f"{world.size} ranks ({world.launcher}); start one rank for each device, or one process of each host with "
            "--mesh"
        )
    if runtime.global_ordinal() != world.rank:
        raise UserError(
            f"rank {world.rank} ({world.launcher}) has the device that the runtime numbers {runtime.global_ordinal()}, "
            "and collectives go by that number; start the ranks in the order of the devices, as torchrun does, or one "
            "process of each host with --mesh"
        )


def pod_worker() -> dict[str, str]:
    """Return this TPU pod worker's place as torchrun would set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    The workers are started alike; the runtime gives their number and this worker's index. Blocks until all have
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
    """Return torchrun's variables of this rank: the runtime supports no other launcher."""
    return {
        **{name: str(getattr(world, field)) for field, name in Env.placement_variables.items()},
        "MASTER_ADDR": world.hosts[0],
        "TORCHELASTIC_RUN_ID": "cpudist",
    }
