"""accelerate's choice of a backend, and its DDP.

Each function makes the replacement of `original`; `PATCHES` says why.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from cpudist.console import say
from cpudist.optimization import precision

if TYPE_CHECKING:
    from cpudist.huggingface import Context


def prepare_backend(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `PartialState._prepare_backend`: on CPUs accelerate takes the job's own process group, under its name."""
    if context.job.world.device_type != "cpu":
        return original
    multi_cpu = sys.modules[original.__module__].DistributedType.MULTI_CPU
    # accelerate gathers with a function that torch 2.13 renames; a user can do nothing about it.
    context.job.changes.ignored_warnings(".*all_gather_into_tensor.* is deprecated", FutureWarning)

    @functools.wraps(original)
    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return context.job.check_backend(backend), multi_cpu

    return stay


def state_init(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `AcceleratorState.__init__`: on CPUs compute in bfloat16 instead of float16 where it is fast."""
    if context.job.world.device_type != "cpu":
        return original

    @functools.wraps(original)
    def init(self: Any, mixed_precision: str | None = None, *args: Any, **kwargs: Any) -> None:
        asked = str(mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
        if asked.lower() == "fp16":
            fast = precision.has_bf16()
            mixed_precision = "bf16" if fast else "no"
            context.job.record.dtype = "bfloat16" if fast else "float32"
            if context.job.world.rank == 0 and not type(self)._shared_state:
                why = "" if fast else ", since this CPU has no bfloat16 arithmetic either"
                say(f"accelerate has no float16 on CPUs: computing in {context.job.record.dtype} instead{why}")
        original(self, mixed_precision, *args, **kwargs)

    return init


def prepare_model(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Accelerator.prepare_model`: compress gradients, and note it for the run record.

    Where bfloat16 would be many times slower, it computes in float32.
    """

    @functools.wraps(original)
    def prepare(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self.mixed_precision == "bf16" and precision.fitting(torch.bfloat16) is torch.float32:
            self.native_amp = False
            context.job.record.dtype = "float32"
            if context.job.world.rank == 0:
                say(precision.IN_FLOAT32)
        trains = not (kwargs.get("evaluation_mode") or args[1:2] == (True,))
        prepared = original(self, model, *args, **kwargs)
        if trains:
            context.job.communication.compress(prepared)
        context.job.record.note_gradients_of(prepared)
        return prepared

    return prepare
