"""Distributed training on the CPU nodes you already have, over MPI and Intel oneCCL.

    import cpudist
    world = cpudist.init()
    model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
    model = cpudist.wrap(model)
    loss.backward(); cpudist.step(optimizer)
    cpudist.shutdown()

Importing cpudist is cheap: torch is imported when something that needs it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cpudist.backends.ccl.intel import answer_for_missing_package
from cpudist.errors import StartupTimeout, UserError
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist import backends
    from cpudist.api import init, shutdown, step, wrap
    from cpudist.notebook import notebook_launcher
    from cpudist.optimization import optimize
    from cpudist.world import World

__all__ = [
    "StartupTimeout",
    "UserError",
    "World",
    "__version__",
    "backends",
    "init",
    "notebook_launcher",
    "optimize",
    "shutdown",
    "step",
    "wrap",
]

_HOMES = {
    "World": "cpudist.world",
    "init": "cpudist.api",
    "notebook_launcher": "cpudist.notebook",
    "optimize": "cpudist.optimization",
    "shutdown": "cpudist.api",
    "step": "cpudist.api",
    "wrap": "cpudist.api",
}


def __getattr__(name: str) -> Any:
    if name == "backends":
        return importlib.import_module("cpudist.backends")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cpudist' has no attribute {name!r}")


# Scripts for Intel's binding import it before they do anything else.
answer_for_missing_package()

# torch registers "ccl" itself when it is imported after this (entry-point group torch.backends).
if "torch" in sys.modules:
    from cpudist.backends.ccl.register import register

    register()
