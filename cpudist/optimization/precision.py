"""Check and choose the type that a model computes in, and apply autocast."""

import copy
import dataclasses
import functools
import platform
import timeit
from collections.abc import Generator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from cpudist import job
from cpudist.errors import UserError
from cpudist.optimization.operators import replace_forward
from cpudist.topology.kernel_files import Files
from cpudist.topology.machine import BFLOAT16, features, units

IN_FLOAT32 = "bfloat16 would be many times slower than float32 on this CPU: computing in float32"


def device_type() -> str:
    """Return the type of the running job's devices; "cpu" without a job."""
    running = job.current()
    return "cpu" if running is None else running.world.device_type


def check(dtype: torch.dtype) -> None:
    """Raise UserError if the running job's devices (without a job, the CPU) cannot train in `dtype`."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UserError(f"cannot optimise for {name(dtype)}; choose float32, bfloat16 or float16")
    if dtype is torch.float16 and device_type() != "cpu":
        backend = job.require().world.backend
        raise UserError(f"float16 is not for the backend {backend}; use bfloat16 (--bf16) or float32")
    # oneDNN has float16 kernels for AVX512_FP16 and AMX-FP16 only.
    if dtype is torch.float16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        why = "this CPU has no float16 arithmetic (AVX512_FP16 or AMX-FP16), and emulating it is slow"
        raise UserError(f"{why}; use bfloat16 (--bf16) or float32")


def fitting(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in for the requested `dtype`: float32 instead of a slow bfloat16.

    On CPUs without bfloat16 kernels of oneDNN (mostly CPUs without AVX-512), PyTorch's own (2.8 to 2.13) are 5 to 80
    times slower than float32. On processors other than x86-64, also time a product: oneDNN's answer does not suffice.
    """
    if dtype is not torch.bfloat16 or device_type() != "cpu":
        return dtype
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype if supported and (platform.machine() == "x86_64" or _has_fast_product()) else torch.float32


@functools.cache
def _has_fast_product() -> bool:
    """Return whether a product of two matrices in bfloat16 takes less than four times as long as in float32."""

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(256, 256, dtype=dtype)
        return min(timeit.repeat(lambda: matrix @ matrix, number=1))

    return seconds(torch.bfloat16) < 4 * seconds(torch.float32)


def has_bf16() -> bool:
    """Return whether this CPU has bfloat16 instructions; other CPUs convert to float32 and back."""
    found = features(Files())
    return found is not None and bool(units(found, BFLOAT16))


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compute_in(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Make `model` run its forward pass under autocast to `dtype` and return float32.

    `dtype` replaces the type of an earlier call; torch.float32 removes the autocast.
    """
    forward: Any = model.forward
    if isinstance(forward, functools.partial) and forward.func is _under_autocast:
        forward = model.forward = forward.args[0]
    if dtype is not torch.float32:
        replace_forward(model, functools.partial(_under_autocast, forward, device_type(), dtype))


def _under_autocast(forward: Any, device: str, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
    # A new context for each call: in a nested forward pass a shared one would lose the outer state.
    with torch.autocast(device, dtype=dtype):
        outputs = forward(*args, **kwargs)
    return tree_map(_in_float32, outputs)


def _in_float32(leaf: Any) -> Any:
    """Convert a part of the outputs to float32, in which losses and metrics are computed."""
    if isinstance(leaf, torch.Tensor):
        return leaf.float() if leaf.dtype in (torch.bfloat16, torch.float16) else leaf
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        leaf = copy.copy(leaf)
        for name, value in vars(leaf).items():
            object.__setattr__(leaf, name, tree_map(_in_float32, value))  # also sets fields of a frozen dataclass
    if isinstance(leaf, Generator):
        return (tree_map(_in_float32, value) for value in leaf)
    return leaf
