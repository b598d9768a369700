"""What the backends on `torch.distributed` process groups for CPU tensors have in common: the device and DDP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import constants, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.base import Backend, Seat


class DdpBackend(Backend):
    """A backend whose default process group has its own name and reduces gradients through DDP."""

    def start(self, seat: Seat) -> None:
        # Groups that are made without a timeout would otherwise wait for torch's half an hour.
        distributed_c10d.default_pg_timeout = timedelta(seconds=seat.timeout)
        dist.init_process_group(
            self.name,
            store=seat.store,
            rank=seat.rank,
            world_size=seat.size,
            timeout=timedelta(seconds=seat.timeout),
        )

    def device(self) -> torch.device:
        return torch.device("cpu")

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wrap in `DistributedDataParallel`; ``options`` are DDP's own."""
        return DistributedDataParallel(model, **options)

    def stop(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        distributed_c10d.default_pg_timeout = constants.default_pg_timeout
