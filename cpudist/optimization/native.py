"""Optimizations without Intel's extension: fused optimizers, freed memory, the norm of gradients."""

import ctypes
import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

# These have a fused kernel for the CPU (torch 2.8: torch/optim/optimizer.py, _get_fused_kernels_supported_devices).
_FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)

_BLOCK = 4096  # A block of this number of float32 values, 16 KB, fits into a first-level cache.

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h> of the GNU C library
_NEVER = -1

_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Make the optimizer update all parameters in one kernel, in each step in which the kernel is correct.

    Between steps the optimizer is not fused, so its copies, which have no hooks, are never fused. If the user has fused
    the optimizer, it stays fused. Return False if there is no fused kernel for its type and options.
    """
    groups = optimizer.param_groups
    if type(optimizer) not in _FUSED or any(group.get("differentiable") or group.get("capturable") for group in groups):
        return False
    if not any(group.get("fused") for group in groups):
        optimizer.register_step_pre_hook(_fuse_where_right)
        optimizer.register_step_post_hook(_unfuse)
        optimizer.register_state_dict_pre_hook(_unfuse)  # if a step raises, its post hook does not run
    return True


def _fuse_where_right(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Fuse the groups for which the fused kernel (torch 2.8 to 2.13) and the unfused one agree in this step.

    Fused kernels reject sparse gradients, and momentum that only some of the parameters have. They read all tensors of
    a parameter in memory order; if strides differ, they update wrong elements without an error. With a closure nothing
    is fused, because the closure computes the gradients later.
    """
    if any(value is not None for value in (*args[1:], *kwargs.values())):
        return
    for group in optimizer.param_groups:
        updated = [parameter for parameter in group["params"] if parameter.grad is not None]
        begun = {optimizer.state.get(parameter, {}).get("momentum_buffer") is not None for parameter in updated}
        group["fused"] = len(begun) < 2 and all(
            parameter.is_floating_point()
            and parameter.device.type == "cpu"
            and all(
                _same_order(parameter, one) for one in (parameter.grad, *optimizer.state.get(parameter, {}).values())
            )
            for parameter in updated
        )


def _unfuse(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
    for group in optimizer.param_groups:
        group["fused"] = False


def _same_order(parameter: torch.Tensor, value: Any) -> bool:
    """Return whether a gradient or optimizer state has its elements in the same memory order as the parameter."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return True
    if value.layout is not torch.strided:
        return False
    strides = zip(parameter.shape, parameter.stride(), value.stride(), strict=True)
    return value.stride() == parameter.stride() or all(size == 1 or one == other for size, one, other in strides)


@torch.no_grad()
def gradient_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of all gradients together, computed on all threads by blocks of each gradient.

    `torch.nn.utils.get_total_norm` (torch 2.8 to 2.13) adds up each tensor on one thread, with a relative error of 1e-3
    for tens of millions of float32 values; by blocks the error is below 1e-6.
    """
    norms = []
    for values in (gradient.reshape(-1) for gradient in gradients):
        tail = len(values) % _BLOCK
        norms.append(torch.linalg.vector_norm(values[: len(values) - tail].view(-1, _BLOCK), dim=1))
        norms.append(torch.linalg.vector_norm(values[len(values) - tail :], dim=0, keepdim=True))
    return torch.cat(norms).square().sum().sqrt()


def own_compile_cache(rank: int) -> str:
    """Return this rank's own folder for torch.compile's files, for TORCHINDUCTOR_CACHE_DIR.

    In a shared folder, a rank that is killed while it writes leaves a truncated library for all ranks.
    """
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # no temporary folder can be written; only torch.compile will fail
        temporary = "/tmp"
    return str(Path(temporary, f"torchinductor_{os.getuid()}", f"rank{rank}"))


def keep_freed() -> bool:
    """Keep freed memory in this process for later steps, until the process ends; return False if nothing was done.

    By default every large tensor is mapped again in each step, and the kernel clears each page at its first use
    (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD). Other allocators, and a glibc that variables configure, are left alone.
    """
    if platform.libc_ver()[0] != "glibc" or any(variable in os.environ for variable in _VARIABLES):
        return False
    loaded, glibc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    # Preloaded allocators such as tcmalloc replace all functions of malloc(3). tcmalloc's mallopt does nothing and
    # returns 1. Compare a function that Python does not call: the address of one that it calls, such as malloc, differs
    # from the library's in a Python that is not position-independent, such as Debian's.
    allocators = [ctypes.cast(library.malloc_usable_size, ctypes.c_void_p).value for library in (loaded, glibc)]
    if allocators[0] != allocators[1]:
        return False
    return bool(glibc.mallopt(_M_MMAP_MAX, 0) and glibc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
