"""The runtime during one job: its devices, its mesh if any, and the transport between its ranks."""

import os
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import Store
from torch_xla import runtime
from torch_xla.debug import metrics

from cpudist import backends
from cpudist.backends.process_group import ProcessGroupBackend
from cpudist.backends.xla import patches, pjrt
from cpudist.backends.xla.sharding import Sharding
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.launchers.pytorch import Env
from cpudist.patching.patch import apply
from cpudist.patching.undo import Changes
from cpudist.rendezvous import StoreGroup
from cpudist.world import World


class Program:
    """Start the runtime, connect the ranks through the host or by the runtime, and patch torch_xla for this job.

    The runtime reads its variables when torch_xla is imported or first used. So call `pjrt.set_variables` before the
    import of this module. `UserError` if the device does not start, the mesh is wrong, or ranks cannot be connected.

    Attributes:
        host: the backend for CPU tensors; None under a mesh, where one process computes with torch's gloo group.
        sharding: the placement of tensors on the mesh; None without a mesh.
    """

    def __init__(
        self,
        choice: pjrt.Choice,
        options: Mapping[str, Any],
        world: World,
        store: Store,
        timeout: float,
        changes: Changes,
    ) -> None:
        self.world = world
        self._choice = choice
        self._changes = changes
        self.host: ProcessGroupBackend | None = None
        self.sharding: Sharding | None = None
        if choice.kind == "cuda":
            from cpudist.backends.xla import cuda_plugin

            cuda_plugin.register(world, changes)
        if options["mesh"] is None:
            self.host = _agree_on_host(world, store, timeout)
        try:
            self._connect(options)
        except RuntimeError as error:  # raised by torch_xla if the device does not start
            reason = str(error).splitlines()[0].rpartition("Bad StatusOr access: ")[2][:80]
            remedy = "check that the device is there and free"
            raise UserError(f"PyTorch/XLA cannot start on {choice.kind.upper()}: {reason}; {remedy}") from error
        apply(patches.PATCHES, self, changes)  # After `Sharding`, which needs the runtime's own use_spmd.
        self._compiled_before = _compiled()

    def _connect(self, options: Mapping[str, Any]) -> None:
        """Use the devices for the first time, and connect the devices of all ranks."""
        if self.host is None:
            self.sharding = Sharding(options, self.world, self._changes)
        elif not self.through_host:
            _join_runtime(self.world)
        elif self.world.size > 1 or runtime.addressable_runtime_device_count() > 1:
            patches.make_one_world(self.world, self._changes)

    @property
    def through_host(self) -> bool:
        """Whether device tensors go through the host, because the runtime does not connect CPU processes."""
        return self.host is not None and self._choice.kind == "cpu"

    def group_name(self) -> str:
        """Return the name of the job's process group for `init_process_group`."""
        if self.host is None:
            return "gloo"
        from cpudist.backends.xla.xla_group import name_with

        return name_with(self.host.name, through_host=self.through_host)

    def watch(self, model: torch.nn.Module) -> None:
        """Place the model's parameters on the mesh, if there is one, and its inputs until the job ends."""
        if self.sharding is not None:
            self._changes.then(self.sharding.watch(model).remove)

    def announce(self) -> None:
        """Print the devices that compute."""
        count = runtime.addressable_runtime_device_count()
        kind = self._choice.kind.upper()
        say(f"xla: {count} {kind} device{'s' * (count > 1)} in each process; {self._choice.because}")
        if count > 1 and not runtime.is_spmd():
            why = f"warning: xla uses one of the {count} devices of each process, unless the script calls use_spmd()"
            say(f"{why}; give --mesh data=-1 to use all")

    def details(self) -> dict[str, Any]:
        """Return fields for the run record; see `Backend.details`."""
        details: dict[str, Any] = {
            "devices": f"{runtime.addressable_runtime_device_count()} of {self._choice.kind.upper()} in each process",
            "device_variables": pjrt.own_variables(os.environ),
        }
        if self.host is not None:
            way = f"through the host, over {self.host.name}" if self.through_host else "by the runtime"
            details["gradients"] = way
            details.update(self.host.details())
        if self.sharding is not None:
            details["mesh"] = self.sharding.mesh_text
        (count, seconds), (earlier, in_seconds) = _compiled(), self._compiled_before
        return {**details, "graphs_compiled": count - earlier, "compile_seconds": round(seconds - in_seconds, 3)}


def _agree_on_host(world: World, store: Store, timeout: float) -> ProcessGroupBackend:
    """Return the backend for CPU tensors: ccl if every rank can use it, otherwise gloo with a warning."""
    found = backends.first_usable(
        backends.AUTO,
        {},
        StoreGroup(store, world.rank, world.size, timeout).all_gather,
        is_main_process=world.rank == 0 and world.size > 1,
    )
    return cast(ProcessGroupBackend, found)


def _join_runtime(world: World) -> None:
    """Make the runtime connect the devices of all ranks. Call it before any other use of the runtime.

    `UserError` if the runtime counts or numbers the ranks in another way than the launcher.
    """
    if world.size > 1:
        # torchrun's variables of this rank, because the runtime supports no other launcher.
        variables = dict(zip(Env.placement_variables, map(str, astuple(world.placement)), strict=False))
        variables |= {"MASTER_ADDR": world.hosts[0], "TORCHELASTIC_RUN_ID": "cpudist"}
        with Changes() as changes:
            for name, value in variables.items():
                changes.default_variable(name, value)
            # The runtime chooses the process's device here, for all later calls; the yielded store is not used.
            next(dist.rendezvous("xla://"))
    connected = runtime.world_size(), runtime.process_count()
    if connected != (world.size, world.size):
        why = f"the runtime has connected {connected[0]} devices of {connected[1]} processes for {world.size} ranks"
        raise UserError(f"{why} ({world.launcher}); start one rank for each device, or one process with --mesh")
    if runtime.global_ordinal() != world.rank:
        why = f"rank {world.rank} ({world.launcher}) has the device that the runtime numbers {runtime.global_ordinal()}"
        raise UserError(f"{why}; start the ranks in the order of the devices, as torchrun does, or use --mesh")


def _compiled() -> tuple[int, float]:
    """Return the number of graphs that this process has compiled so far, and the seconds spent."""
    data = metrics.metric_data("CompileTime")
    return (int(data[0]), float(data[1]) / 1e9) if data else (0, 0.0)
