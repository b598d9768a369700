"""Connect the ranks of a job on xla, through the host or by the runtime."""

from typing import cast

import torch.distributed as dist
from torch.distributed import Store

from cpudist import backends
from cpudist.backends.process_group import ProcessGroupBackend
from cpudist.errors import UserError
from cpudist.launchers.env import Env
from cpudist.patching.undo import Changes
from cpudist.rendezvous import all_gather
from cpudist.world import World


def agree_on_host(world: World, store: Store, timeout: float) -> ProcessGroupBackend:
    """Return the fastest backend between hosts that every rank can use: ccl, or gloo with a warning."""

    def ask_everyone(key: str, own: str) -> list[str]:
        return all_gather(store, world.rank, world.size, key, own, timeout)

    found = backends.first_usable(backends.AUTO, {}, ask_everyone, is_main_process=world.rank == 0 and world.size > 1)
    return cast("ProcessGroupBackend", found)


def join_runtime(world: World) -> None:
    """Make the runtime connect the devices of all ranks. Call it before any other use of the runtime.

    Raises:
        UserError: the runtime's number of ranks differs from the launcher's, or it numbers them differently.
    """
    from torch_xla import runtime

    if world.size > 1:
        # torchrun's variables of this rank, because the runtime supports no other launcher.
        variables = {name: str(getattr(world, field)) for field, name in Env.placement_variables.items()}
        variables |= {"MASTER_ADDR": world.hosts[0], "TORCHELASTIC_RUN_ID": "cpudist"}
        with Changes() as changes:
            for name, value in variables.items():
                changes.default_variable(name, value)
            # The runtime chooses the process's device here, once for all calls; the store that it yields is not used.
            next(dist.rendezvous("xla://"))
    connected = runtime.world_size(), runtime.process_count()
    if connected != (world.size, world.size):
        raise UserError(
            f"the runtime has connected {connected[0]} devices of {connected[1]} processes, and this job has "
            f"{world.size} ranks ({world.launcher}); start one rank for each device, or one process with --mesh"
        )
    if runtime.global_ordinal() != world.rank:
        raise UserError(
            f"rank {world.rank} ({world.launcher}) has the device that the runtime numbers {runtime.global_ordinal()}, "
            "and collectives go by that number; start the ranks in the order of the devices, as torchrun does, or one "
            "process with --mesh"
        )
