"""What PyTorch itself offers: fused optimizers, channels-last convolutions, compilation."""

from __future__ import annotations

import getpass
import tempfile
from pathlib import Path

import torch

# Those with a fused kernel for the CPU (torch 2.8: torch/optim/optimizer.py, _get_fused_kernels_supported_devices).
_FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)


def fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Let the optimizer update all parameters in one kernel; False where it has none, or must be differentiable."""
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
    """Lay out the weights of two-dimensional convolutions with channels last, as oneDNN computes; False without any."""
    if not any(isinstance(module, torch.nn.Conv2d) for module in model.modules()):
        return False
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return True


def own_compile_cache(rank: int) -> str:
    """A folder for what torch.compile makes on this rank alone, to be named in TORCHINDUCTOR_CACHE_DIR.

    In a folder that ranks share, one that is killed while it writes leaves a truncated library for all.
    """
    return str(Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}", f"rank{rank}"))
