"""Distributed training on the CPU nodes you already have, over MPI and Intel oneCCL.

    import cpudist
    world = cpudist.init()
    model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
    model = cpudist.wrap(model)
    loss.backward(); cpudist.step(optimizer)
    cpudist.shutdown()

Importing cpudist is cheap: torch is imported at the first use of a name that needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cpudist.errors import StartupTimeout, UserError
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist import backends
    from cpudist.api import batches, init, log, mean, shares, shutdown, step, wrap
    from cpudist.checkpoints.files import load, save
    from cpudist.checkpoints.series import Checkpoints
    from cpudist.notebook import notebook_launcher
    from cpudist.optimization import optimize, scaler
    from cpudist.world import World

__all__ = [
    "Checkpoints",
    "StartupTimeout",
    "UserError",
    "World",
    "__version__",
    "backends",
    "batches",
    "init",
    "load",
    "log",
    "mean",
    "notebook_launcher",
    "optimize",
    "save",
    "scaler",
    "shares",
    "shutdown",
    "step",
    "wrap",
]

_NAMES = {
    "cpudist.api": ("batches", "init", "log", "mean", "shares", "shutdown", "step", "wrap"),
    "cpudist.checkpoints.files": ("load", "save"),
    "cpudist.checkpoints.series": ("Checkpoints",),
    "cpudist.notebook": ("notebook_launcher",),
    "cpudist.optimization": ("optimize", "scaler"),
    "cpudist.world": ("World",),
}


def __getattr__(name: str) -> Any:
    if name == "backends":
        return importlib.import_module("cpudist.backends")
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'cpudist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if "torch" in sys.modules:  # If torch is imported later, it calls `register` itself (entry-point group torch.backends).
    from cpudist.backends.ccl.register import register

    register()
