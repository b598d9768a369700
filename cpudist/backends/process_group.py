"""What backends on `torch.distributed` process groups for CPU tensors have in common: the group's life, and DDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import constants, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.base import Backend
from cpudist.backends.sharded import ShardedDataParallel
from cpudist.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.world import World


class ProcessGroupBackend(Backend):
    """A backend whose default process group has its own name and reduces gradients through DDP."""

    optimizations = frozenset(
        {"ipex", "fused", "channels_last", "keep_memory", "master_weights", "autocast", "compile"},
    )

    def start(self, world: World, store: Store, timeout: float) -> None:
        self._bound_new_groups(timeout)
        dist.init_process_group(
            self.name,
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout),
        )

    def variables(self) -> Mapping[str, str]:
        return {
            # A device without an index: moved to "cpu:0", as accelerate would, weights that IPEX has prepacked are
            # corrupted.
            "ACCELERATE_TORCH_DEVICE": self.device_type,
            # accelerate and transformers take torch_xla, where it is installed, before they look for a CPU.
            "USE_TORCH_XLA": "0",
        }

    def wrap(self, model: torch.nn.Module, *, shard_optimizer: bool = False, **options: Any) -> torch.nn.Module:
        """Wrap in `DistributedDataParallel`, whose own `options` are, or in `ShardedDataParallel`, which has none."""
        if not shard_optimizer:
            return DistributedDataParallel(model, **{**self.ddp_options(), **options})
        if options:
            raise UserError(f"with shard_optimizer=True there is no DDP to take {', '.join(options)}; leave them out")
        return ShardedDataParallel(model, averages=self.averages())

    def averages(self) -> bool:
        """Whether its groups know `ReduceOp.AVG`; gloo's do not."""
        return False

    def ddp_options(self) -> dict[str, Any]:
        return {"gradient_as_bucket_view": True}  # otherwise each gradient is copied once more (docs/performance.md)

    def set_timeout(self, seconds: float) -> None:
        if dist.is_initialized():
            group = distributed_c10d._get_default_group()
            self._bound(group._get_backend(torch.device(self.device_type)), seconds)
        self._bound_new_groups(seconds)

    def _bound(self, group: Any, seconds: float) -> None:
        """Bound the collectives of `group`, the backend's own object."""
        if not hasattr(group, "set_timeout"):  # before torch 2.9 gloo takes a new limit and goes on with the old one
            raise UserError(
                f"{self.name} of torch {torch.__version__} cannot change its timeout after the start; "
                f"give cpudist-train --timeout {seconds:g} where the script says ddp_timeout"
            )
        group.set_timeout(timedelta(seconds=seconds))

    @staticmethod
    def _bound_new_groups(seconds: float) -> None:
        # Groups that are made without a timeout would otherwise wait for torch's half an hour.
        distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)

    def stop(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        distributed_c10d.default_pg_timeout = constants.default_pg_timeout


@dataclass(frozen=True)
class Members:
    """A process group as messages name it, empty for the default one; its ranks in the job, or None for all."""

    name: str = ""
    ranks: tuple[int, ...] | None = None


def groups() -> dict[str, Members]:
    """The process groups of this rank, by the names that torch gives them; any thread may ask."""
    known: dict[str, Members] = {}
    for group, name in list(distributed_c10d._world.pg_names.items()):
        if group is distributed_c10d.GroupMember.WORLD:
            known[name] = Members()
            continue
        ranks = distributed_c10d._world.pg_group_ranks.get(group, {})
        label = name if group.group_desc in ("", "undefined") else f"{group.group_desc}:{name}"
        known[name] = Members(label, tuple(sorted(ranks, key=ranks.__getitem__)))
    return known
