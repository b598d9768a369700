"""Patches of accelerate's choice of backend and number format, of its DDP, and of its clipping of gradients.

Each function with a parameter `original` returns the replacement for it. `PATCHES` has the reasons.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from cpudist.console import say
from cpudist.job.script_groups import check_backend
from cpudist.optimization import native, precision

if TYPE_CHECKING:
    from cpudist.huggingface import Context


def prepare_backend(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `PartialState._prepare_backend`: on CPUs, accelerate uses the job's own process group."""
    if context.job.world.device_type != "cpu":
        return original
    multi_cpu = sys.modules[original.__module__].DistributedType.MULTI_CPU
    # accelerate calls a function that is deprecated in torch 2.13; users cannot change this call.
    context.job.changes.ignored_warnings(".*all_gather_into_tensor.* is deprecated", FutureWarning)

    @functools.wraps(original)
    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return check_backend(context.job, backend), multi_cpu

    return stay


def state_init(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `AcceleratorState.__init__`: on CPUs, replace float16 by bfloat16 where that is fast, else by float32."""
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
    """Replace `Accelerator.prepare_model`: compress gradients; compute in float32 where bfloat16 is far slower."""

    @functools.wraps(original)
    def prepare(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self.mixed_precision == "bf16" and precision.fitting(torch.bfloat16) is torch.float32:
            self.native_amp = False
            context.job.record.dtype = "float32"
            if context.job.world.rank == 0:
                say(precision.IN_FLOAT32)
        trains = not (kwargs.get("evaluation_mode") or args[1:2] == (True,))
        if not trains:
            return original(self, model, *args, **kwargs)
        return context.job.ddp_models.wrap(lambda: original(self, model, *args, **kwargs))

    return prepare


def clip_by_blocks(accelerator: Any) -> None:
    """Let `accelerator` clip dense float32 gradients on CPUs by the norm of `native.gradient_norm`, others as before.

    Where ranks have shards of gradients (FSDP, DeepSpeed), nothing changes, because accelerate adds up shards' norms.
    """
    if accelerator.distributed_type not in ("NO", "MULTI_CPU"):
        return
    original = accelerator.clip_grad_norm_

    @functools.wraps(original)
    def clip(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients or norm_type != 2 or not all(map(_is_plain, gradients)):
            return original(parameters, max_norm, norm_type)
        accelerator.unscale_gradients()
        norm = native.gradient_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    accelerator.clip_grad_norm_ = clip


def _is_plain(gradient: torch.Tensor) -> bool:
    dense = type(gradient) is torch.Tensor and gradient.layout is torch.strided
    return dense and gradient.device.type == "cpu" and gradient.dtype is torch.float32
