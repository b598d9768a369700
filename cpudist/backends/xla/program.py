"""The runtime during one job: its devices, its mesh if any, and the transport between its ranks."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed import Store
from torch_xla import runtime
from torch_xla.debug import metrics

from cpudist.backends.process_group import ProcessGroupBackend
from cpudist.backends.xla import joining, patches, pjrt
from cpudist.backends.xla.sharding import Sharding
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.patching.patch import apply
from cpudist.patching.undo import Changes
from cpudist.world import World


class Program:
    """Start the runtime, and patch it for this job.

    The runtime reads its variables when torch_xla is imported or first used. So call `pjrt.set_variables` before the
    import of this module.

    Attributes:
        host: the backend for CPU tensors; None under a mesh, which allows no other process group.
        sharding: the placement of tensors on the mesh; None without a mesh.

    Raises:
        UserError: the mesh is invalid, or the runtime cannot connect the job's processes.
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
        self._choice = choice
        self._changes = changes
        self.host: ProcessGroupBackend | None = None
        self.sharding: Sharding | None = None
        if choice.kind == "cuda":
            from cpudist.backends.xla import cuda_plugin

            cuda_plugin.register(world, changes)
        if options["mesh"] is None:
            self.host = joining.agree_on_host(world, store, timeout)
        try:
            self._connect(options, world)
        except RuntimeError as error:  # raised by torch_xla if the device does not start
            reason = str(error).splitlines()[0].rpartition("Bad StatusOr access: ")[2][:80]
            raise UserError(
                f"PyTorch/XLA cannot start on {choice.kind.upper()}: {reason}; check that the device is there and free"
            ) from error
        # After `Sharding`, which needs the runtime's own use_spmd.
        apply(patches.PATCHES, patches.Starts(world, self.sharding is not None), changes)
        self._compiled_before = _compiled()

    def _connect(self, options: Mapping[str, Any], world: World) -> None:
        """Use the devices for the first time, and connect the devices of all ranks."""
        if self.host is None:
            self.sharding = Sharding(options, world, self._changes)
        elif not self.through_host:
            joining.join_runtime(world)
        elif world.size > 1 or runtime.addressable_runtime_device_count() > 1:
            patches.make_one_world(world, self._changes)

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
        """Place the model on the mesh, if there is one, until the job ends."""
        if self.sharding is not None:
            self._changes.then(self.sharding.watch(model).remove)

    def announce(self) -> None:
        """Print the devices that compute."""
        count = runtime.addressable_runtime_device_count()
        kind = self._choice.kind.upper()
        say(f"xla: {count} {kind} device{'s' * (count > 1)} in each process; {self._choice.because}")
        if count > 1 and not runtime.is_spmd():
            say(
                f"warning: xla uses one of the {count} devices of each process, unless the script calls use_spmd(); "
                "give --mesh data=-1 to use all"
            )

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


def _compiled() -> tuple[int, float]:
    """Return the number of graphs that this process has compiled so far, and the seconds spent."""
    data = metrics.metric_data("CompileTime")
    return (int(data[0]), float(data[1]) / 1e9) if data else (0, 0.0)
