"""XLA's PJRT plugin for GPUs in torch_xla 2.8, and fixes for this release's errors on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch_xla
from torch_xla.experimental import plugins

from cpudist.backends.xla import gpu

if TYPE_CHECKING:
    from cpudist.patching.undo import Changes
    from cpudist.world import World

_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}


class CudaPlugin(plugins.DevicePlugin):  # type: ignore[misc]
    """The plugin. Each rank has one device; a job of one rank has all devices."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def library_path(self) -> str:
        return str(gpu.library())

    def physical_chip_count(self) -> int:
        return self._world.local_size

    def configure_single_process(self) -> None:
        """Do nothing: one process needs no options besides those of `client_create_options`."""

    def client_create_options(self) -> dict[str, Any]:
        world = self._world
        options: dict[str, Any] = {"platform_name": "gpu", "allocator": "default"}
        if world.size > 1:
            options |= {"visible_devices": [world.local_rank], "node_id": world.rank, "num_nodes": world.size}
        return options

    def requires_xla_coordinator(self) -> bool:
        return self._world.size > 1


def register(world: World, changes: Changes) -> None:
    """Make torch_xla compute on GPUs; call it before any other use of the runtime.

    float32 products use the precision of `torch.set_float32_matmul_precision`; XLA's default would be TF32.
    """
    plugins.register_plugin("CUDA", CudaPlugin(world))
    torch_xla._XLAC._xla_set_mat_mul_precision(_PRECISION[torch.get_float32_matmul_precision()])
    _autocast(changes)


def _autocast(changes: Changes) -> None:
    """Make ``torch.autocast("xla")`` set CUDA's autocast, because torch_xla's GPU tensors (2.8) use CUDA's."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def begin(self: Any) -> Any:
        if self.device == "xla":
            self._of_cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            torch.set_autocast_enabled("cuda", self._enabled)
            torch.set_autocast_dtype("cuda", self.fast_dtype)
        return enter(self)  # type: ignore[no-untyped-call]

    def end(self: Any, *error: Any) -> Any:
        if self.device == "xla":
            enabled, dtype = self._of_cuda
            torch.set_autocast_enabled("cuda", enabled)
            torch.set_autocast_dtype("cuda", dtype)
        return leave(self, *error)

    changes.attribute(torch.autocast, "__enter__", begin)
    changes.attribute(torch.autocast, "__exit__", end)
