"""accelerate's choice of a backend, and its DDP.

Each function makes what takes the place of `original`; `PATCHES` says why.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cpudist.backends.sharded import ShardedDataParallel
from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.huggingface import Context


def prepare_backend(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `PartialState._prepare_backend`: accelerate takes the job's own process group, under its name."""
    multi_cpu = sys.modules[original.__module__].DistributedType.MULTI_CPU
    # accelerate gathers with a function that torch 2.13 renames; a user can do nothing about it.
    context.job.changes.ignored_warnings(".*all_gather_into_tensor.* is deprecated", FutureWarning)

    @functools.wraps(original)
    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return context.job.check_backend(backend), multi_cpu

    return stay


def prepare_model(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Accelerator.prepare_model`: compress gradients, and note for the run record how they are reduced."""

    @functools.wraps(original)
    def prepare(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, ShardedDataParallel):
            raise UserError(
                "accelerate and Trainer wrap models themselves: give them the model without cpudist.wrap(); "
                "shard_optimizer=True is for training loops without them"
            )
        prepared = original(self, model, *args, **kwargs)
        if not (kwargs.get("evaluation_mode") or args[1:2] == (True,)):
            context.job.compress(prepared)
        context.job.record.note_gradients_of(prepared)
        return prepared

    return prepare
