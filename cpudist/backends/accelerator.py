"""The accelerator backend, for the device of `torch.accelerator` (such as cuda or tpu) and its process group."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store, distributed_c10d
from torch.utils._pytree import tree_map_only

from cpudist.backends.interface import Devices
from cpudist.backends.process_group import ProcessGroupBackend, init_group
from cpudist.console import number_of
from cpudist.errors import UserError
from cpudist.world import World


class AcceleratorDevices(Devices):
    """The devices of `torch.accelerator`; each rank of a node uses one."""

    def found(self) -> str | None:
        kind, count = _kind(), torch.accelerator.device_count()
        return kind and number_of(count, f"{kind.upper()} device")

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of `loader` on the device."""
        for batch in loader:
            yield tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.type, non_blocking=True), batch)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def random_state(self) -> Any:
        return torch.get_device_module(self.type).get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.get_device_module(self.type).set_rng_state(state)


class AcceleratorBackend(ProcessGroupBackend):
    """`torch.distributed`'s default backend for the device (nccl, tpu_dist), and gloo for CPU tensors."""

    name = "accelerator"
    devices = AcceleratorDevices()

    def unavailable(self) -> str | None:
        kind = _kind()
        if kind is None:
            return f"torch {torch.__version__} finds no accelerator; install its driver, and a torch built for it"
        if kind not in dist.Backend.default_device_backend_map:
            return f"torch has no process group for {kind}; install the package that brings it"
        return None

    def start(self, world: World, store: Store, timeout: float) -> None:
        kind, count = str(_kind()), torch.accelerator.device_count()
        if world.local_size > count:
            raise UserError(
                f"{world.hosts[world.node_rank]} has {world.local_size} ranks and {self.devices.found()}; "
                "start one rank for each device"
            )
        self.devices.type = kind
        torch.accelerator.set_device_index(world.local_rank)
        init_group(f"cpu:gloo,{kind}:{self.transport()}", world, store, timeout)

    def set_timeout(self, seconds: float) -> None:
        if dist.is_initialized():
            self._bound(distributed_c10d._get_default_group()._get_backend(torch.device("cpu")), seconds)
        super().set_timeout(seconds)

    def transport(self) -> str | None:
        return dist.Backend.default_device_backend_map.get(self.devices.type)

    def details(self) -> dict[str, Any]:
        return {"devices": self.devices.found()}


def _kind() -> str | None:
    """Return the type of this process's accelerator; None if torch finds no device."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type
