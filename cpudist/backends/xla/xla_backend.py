"""The xla backend: ranks communicate through the host on CPUs, by the runtime on GPUs and TPUs; a mesh has one rank.

The module imports torch in methods only; see `Backend`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cpudist.backends.interface import Backend, Calls, Option
from cpudist.backends.xla import pjrt
from cpudist.backends.xla.xla_devices import XlaDevices
from cpudist.patching.on_import import after_import
from cpudist.patching.patch import apply
from cpudist.patching.undo import Changes

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

    from cpudist.backends.process_group import ProcessGroupBackend
    from cpudist.backends.xla.program import Program
    from cpudist.backends.xla.sharding import Sharding
    from cpudist.world import World


class XlaBackend(Backend):
    """PyTorch/XLA. `start` chooses the device before it imports torch_xla, which reads the choice at its import."""

    name = "xla"
    options = (
        Option("device", "what PyTorch/XLA computes on (PJRT_DEVICE)", choices=pjrt.KINDS),
        Option(
            "mesh",
            "one program over a mesh of all devices: data=4, fsdp=4, data=2,model=2; -1 stands for the rest",
            metavar="AXES",
        ),
        Option("show_sharding", "print how tensors lie on the devices", type=bool, default=False, needs="mesh"),
    )
    devices = XlaDevices()
    _host: ProcessGroupBackend | None = None  # for CPU tensors
    _carrier: ProcessGroupBackend | None = None  # for the device's tensors; None if the runtime carries them
    _sharding: Sharding | None = None

    def __init__(self) -> None:
        self._changes = Changes()

    def unavailable(self) -> str | None:
        return pjrt.unusable(self.configured["device"], os.environ)

    def start(self, world: World, store: Store, timeout: float) -> None:
        from cpudist.backends.process_group import init_group

        first = self.devices.program is None  # A script may destroy its process group and create another one.
        try:
            program = self.devices.program = self.devices.program or self._make_program(world, store, timeout)
            self._host, self._sharding = program.host, program.sharding
            self._carrier = program.host if program.through_host else None
            init_group(program.group_name(), world, store, timeout)
        except BaseException:
            self.stop()
            raise
        if first and world.rank == 0:
            program.announce()

    def _make_program(self, world: World, store: Store, timeout: float) -> Program:
        pjrt.check_variables(os.environ, world.size, meshed=self.configured["mesh"] is not None)
        choice = pjrt.choose(self.configured["device"], os.environ)
        pjrt.set_variables(choice, self.configured["mesh"], self._changes)
        from cpudist.backends.xla.program import Program

        return Program(choice, self.configured, world, store, timeout, self._changes)

    def change_libraries(self, changes: Changes) -> None:
        from cpudist.backends.xla import patches

        changes.variable("USE_TORCH_XLA", "1")  # makes accelerate and transformers prefer torch_xla
        if self.devices.program is not None and self.devices.program.world.size > 1:
            changes.then(after_import("accelerate.data_loader", lambda _: apply(patches.LOADER_PATCHES, None, changes)))

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wrap in `DistributedDataParallel`, which takes `options`; under a mesh, place the model on it instead."""
        from torch.distributed import get_world_size
        from torch.nn.parallel import DistributedDataParallel

        self.devices.prepare(model)
        if self._sharding is not None:
            self._sharding.check_ddp_options(options)
            return model
        if self._carrier is None:  # PyTorch/XLA's documentation: DDP alone may not start from rank 0's weights
            from torch_xla.core import xla_model

            xla_model.broadcast_master_param(model)
        wrapped = DistributedDataParallel(model, **{**self.ddp_options(), **options})
        if get_world_size() == 1:  # Copying gradients into buckets would take a tenth of a small step.
            wrapped.require_backward_grad_sync = False
        return wrapped

    def ddp_options(self) -> dict[str, Any]:
        # Each bucket that goes through the host cuts the graph in two, so few large buckets are fastest.
        return {"gradient_as_bucket_view": True, "bucket_cap_mb": 100}

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._sharding is not None and tensor.device.type == "xla":  # a mesh has only one process
            return tensor.detach().cpu().double()
        return super().mean(tensor)

    def set_timeout(self, seconds: float) -> None:
        if self._host is None:  # a mesh has one process, so no call waits for another
            return
        import torch.distributed as dist

        from cpudist.backends.process_group import bound_new_groups

        bound_new_groups(seconds)
        if dist.is_initialized():
            group: Any = dist.group.WORLD
            self._host._bound(group.host, seconds)

    def transport(self) -> str | None:
        if self._carrier is not None:
            return self._carrier.transport()
        return None if self.devices.program is None else "pjrt"

    def calls(self) -> Calls | None:
        return None if self._host is None else self._host.calls()

    def details(self) -> dict[str, Any]:
        import torch_xla

        found = {} if self.devices.program is None else self.devices.program.details()
        return {"torch_xla": torch_xla.__version__, **found}

    def communication_seconds(self) -> float | None:
        return None if self._carrier is None else self._carrier.communication_seconds()

    def stop(self) -> None:
        import torch.distributed as dist

        from cpudist.backends.process_group import bound_new_groups

        if dist.is_initialized():
            if self._host is not None:
                self._host.stop()
            else:
                dist.destroy_process_group()
        bound_new_groups(None)
        self._changes.undo()
        self.devices.program = self._host = self._carrier = self._sharding = None
