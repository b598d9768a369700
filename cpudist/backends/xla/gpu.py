"""Packages and files that PyTorch/XLA needs on GPUs. This module does not import torch.

torch_xla 2.8's own plugin for GPUs was not released. JAX publishes the same plugin of XLA as `jax-cuda12-pjrt`. A newer
plugin has a newer PJRT, which rejects torch_xla's calls. torch_xla 2.9 rejects GPUs.
"""

import ctypes
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

_PLUGIN, _FITTING = "jax-cuda12-pjrt", "0.6.2"
_INSTALL = "pip install 'cpudist[xla-cuda]'"


def lacks() -> str | None:
    """Return what is missing to compute on GPUs, with the remedy; None if nothing is missing."""
    try:
        found = version(_PLUGIN)
    except PackageNotFoundError:
        return f"{_PLUGIN}, which drives GPUs, is not installed: {_INSTALL}"
    if found != _FITTING or not version("torch_xla").startswith("2.8."):
        return f"{_PLUGIN} {found} does not fit torch_xla {version('torch_xla')}: {_INSTALL}"
    if toolkit() is None:
        return f"there is no ptxas, which compiles for GPUs: {_INSTALL}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1); install it, or use --device cpu"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"
    return None


def library() -> Path:
    return Path(str(distribution(_PLUGIN).locate_file("jax_plugins/xla_cuda12/xla_cuda_plugin.so")))


def toolkit() -> Path | None:
    """Return the folder with bin/ptxas and nvvm/libdevice: NVIDIA's package, or a CUDA toolkit on PATH."""
    found = shutil.which("ptxas")
    roots = [Path(entry, "nvidia", "cuda_nvcc") for entry in sys.path]
    roots += [Path(found).resolve().parents[1]] if found else []
    return next((root for root in roots if (root / "bin" / "ptxas").exists()), None)
