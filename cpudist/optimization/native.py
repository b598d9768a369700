"""Optimizations without Intel's extension: fused optimizers, channels-last convolutions, freed memory."""

from __future__ import annotations

import ctypes
import getpass
import os
import platform
import tempfile
from pathlib import Path

import torch

# Those with a fused kernel for the CPU (torch 2.8: torch/optim/optimizer.py, _get_fused_kernels_supported_devices).
_FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)

# <malloc.h> of the GNU C library
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1

_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Let the optimizer update all parameters in one kernel; return False where it cannot."""
    if type(optimizer) not in _FUSED:
        return False
    groups = optimizer.param_groups
    if any(group.get("differentiable") or group.get("capturable") for group in groups):
        return False
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not all(parameter.is_floating_point() and parameter.device.type == "cpu" for parameter in parameters):
        return False
    for group in [optimizer.defaults, *groups]:
        group["fused"], group["foreach"] = True, False
    return True


def channels_last(model: torch.nn.Module) -> bool:
    """Store weights of 2-D convolutions with channels last, as oneDNN computes; return False without any."""
    if not any(isinstance(module, torch.nn.Conv2d) for module in model.modules()):
        return False
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return True


def own_compile_cache(rank: int) -> str:
    """Return a folder of this rank alone for torch.compile's files, for TORCHINDUCTOR_CACHE_DIR.

    In a shared folder, a rank that is killed while it writes leaves a truncated library for all ranks.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in OpenShift's pods; OSError from Python 3.13 on
        user = str(os.getuid())
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # nothing can be written: a failure of torch.compile's alone
        temporary = "/tmp"
    return str(Path(temporary, f"torchinductor_{user}", f"rank{rank}"))


def keep_freed() -> bool:
    """Keep memory that is freed in the process, for the next step to use. This cannot be undone.

    By default every large tensor is mapped anew in each step, and the kernel clears each of its pages when it is first
    touched (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD).

    Returns:
        False if nothing was done: glibc does not allocate for this process, or a variable sets its behaviour.
    """
    if platform.libc_ver()[0] != "glibc" or any(variable in os.environ for variable in _VARIABLES):
        return False
    loaded, glibc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    # tcmalloc and others, preloaded, replace all functions of malloc(3). tcmalloc's mallopt ignores everything and
    # returns 1. Python does not call this function; `malloc` has an address of its own in a Python that is not
    # position-independent, such as Debian's.
    allocators = [ctypes.cast(library.malloc_usable_size, ctypes.c_void_p).value for library in (loaded, glibc)]
    if allocators[0] != allocators[1]:
        return False
    return bool(glibc.mallopt(_M_MMAP_MAX, 0) and glibc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
