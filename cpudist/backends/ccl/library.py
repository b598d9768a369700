"""Loads the compiled backend and starts oneCCL, once per process, with the settings it needs.

oneCCL takes its settings from the environment when it starts. What the user has set is never overridden.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Literal

from cpudist import launchers
from cpudist.backends.ccl.build import ensure_built
from cpudist.backends.ccl.toolchain import find_oneccl
from cpudist.errors import UserError

Transport = Literal["mpi", "ofi"]


@cache
def load() -> Any:
    """Return the extension module ``cpudist_ccl`` with oneCCL's settings in place, compiling it if needed.

    Raises:
        UserError: when it cannot be compiled or loaded; the line names the remedy.
    """
    path = ensure_built()
    for name, value in settings(choose_transport()).items():
        os.environ.setdefault(name, value)
    loader = ExtensionFileLoader("cpudist_ccl", str(path))
    spec = spec_from_file_location("cpudist_ccl", path, loader=loader)
    assert spec is not None
    try:
        import torch  # noqa: F401  (its libraries must be there first)

        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise UserError(f"the compiled ccl backend does not load: {error}; remove {path.parent}") from None
    module.start()
    atexit.register(_leave, module)
    # A forked child must not take its parent's place in the job; the module has shut itself in the child.
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave))
    return module


def choose_transport() -> Transport:
    """What oneCCL should carry messages with: MPI where a launcher has made an MPI world that it can join.

    oneCCL speaks the MPICH ABI (Intel MPI, MPICH), not Open MPI's; everywhere else it uses libfabric (OFI) by itself.
    """
    if chosen := os.environ.get("CCL_ATL_TRANSPORT"):
        return "mpi" if chosen == "mpi" else "ofi"
    return "mpi" if _in_mpi_world(os.environ) and (find_oneccl().lib / "libmpi.so.12").exists() else "ofi"


def _in_mpi_world(env: Mapping[str, str]) -> bool:
    launcher = launchers.detect(env)
    if launcher.rendezvous(env) != "mpi" or launcher.name == "open-mpi":
        return False
    # Processes that a rank has spawned inherit its variables; then WORLD_SIZE is theirs.
    return env.get("WORLD_SIZE") in (None, str(launcher.placement(env).size))


def settings(transport: Transport) -> dict[str, str]:
    """What oneCCL is told at its start, by variable."""
    return {
        "CCL_ATL_TRANSPORT": transport,
        # No thread of its own that polls: on a core that computes it costs more than it brings, and over OFI a small
        # allreduce takes 8 ms instead of 24 us. csrc/engine.hpp makes the progress.
        "CCL_WORKER_OFFLOAD": "0",
        # Left to itself it chooses an algorithm by the bytes of this rank, and ranks with different shares then wait
        # for each other for ever (a scatter of 9.6 MB at 2 ranks).
        "CCL_ALLTOALLV": "scatter",
        # Its warnings (about the settings above, among others) would come from every rank.
        "CCL_LOG_LEVEL": "error",
    }


def _leave(module: Any) -> None:
    """At interpreter exit: leave oneCCL in order, or after a failure end before its destructors wait for lost peers."""
    import torch.distributed as dist

    if not module.usable():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    # oneCCL ends the MPI that it has started with its last communicator; a rank that goes without that counts as
    # crashed. After an uncaught exception just that is wanted: the launcher then ends the other ranks.
    if getattr(sys, "last_value", None) is None:
        module.drain()
        if dist.is_initialized():
            dist.destroy_process_group()
        module.drain()
    module.close()
