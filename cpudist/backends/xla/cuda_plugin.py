"""Registers XLA's PJRT plugin for GPUs with torch_xla 2.8, and fixes errors of this release on GPUs."""

from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch_xla.experimental import plugins

from cpudist.backends.xla import pjrt
from cpudist.patching.patch import Patch, apply
from cpudist.patching.undo import Changes
from cpudist.world import World

_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}


class CudaPlugin(plugins.DevicePlugin):  # type: ignore[misc]
    """The plugin for this rank. Each rank uses one device; the rank of a job of one rank uses all devices."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def library_path(self) -> str:
        return str(pjrt.plugin())

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

    Matrix products in float32 use the precision of `torch.set_float32_matmul_precision`; XLA's default would be TF32.
    """
    plugins.register_plugin("CUDA", CudaPlugin(world))
    torch_xla._XLAC._xla_set_mat_mul_precision(_PRECISION[torch.get_float32_matmul_precision()])
    apply(PATCHES, None, changes)


def _begin(enter: Callable[[Any], Any], _: object) -> Callable[[Any], Any]:
    def begin(self: Any) -> Any:
        if self.device == "xla":
            self._of_cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            torch.set_autocast_enabled("cuda", self._enabled)
            torch.set_autocast_dtype("cuda", self.fast_dtype)
        return enter(self)

    return begin


def _end(leave: Callable[..., Any], _: object) -> Callable[..., Any]:
    def end(self: Any, *error: Any) -> Any:
        if self.device == "xla":
            enabled, dtype = self._of_cuda
            torch.set_autocast_enabled("cuda", enabled)
            torch.set_autocast_dtype("cuda", dtype)
        return leave(self, *error)

    return end


_AUTOCAST = "torch_xla's GPU tensors (2.8) use the autocast of CUDA, which torch.autocast(xla) does not set"
PATCHES = (
    Patch("torch.amp.autocast_mode:autocast.__enter__", _AUTOCAST, _begin, "self"),
    Patch("torch.amp.autocast_mode:autocast.__exit__", _AUTOCAST, _end, "self, ..."),
)
