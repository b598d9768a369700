"""How a model's gradients are reduced, for the run record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.sharded import ShardedDataParallel

if TYPE_CHECKING:
    from cpudist.job.record import RunRecord


def note_at_first_use(model: torch.nn.Module, record: RunRecord) -> None:
    """Have `record` say how gradients of `model` are reduced, once it is used: a hook may be registered till then."""

    def note(model: torch.nn.Module, args: Any) -> None:
        record.gradients = describe(model)
        handle.remove()

    if describe(model):
        handle = model.register_forward_pre_hook(note)


def describe(model: torch.nn.Module) -> dict[str, Any]:
    """The settings that decide it, by the names of DDP's options; empty for a model that is not wrapped."""
    if isinstance(model, ShardedDataParallel):
        return {"shard_optimizer": True}
    if not isinstance(model, DistributedDataParallel):
        return {}
    hooks = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook, _ in model._comm_hooks]
    return {
        "shard_optimizer": False,
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "static_graph": model.static_graph,
        "hook": hooks[-1] if hooks else None,
    }
