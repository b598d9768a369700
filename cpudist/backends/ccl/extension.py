"""Loads the compiled extension module and starts oneCCL, once in a process, with the settings it needs.

oneCCL takes its settings from the environment when it starts. What the user has set is never overridden.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Literal

from cpudist import environments
from cpudist.backends.ccl.build import ensure_built
from cpudist.backends.ccl.toolchain import find_oneccl
from cpudist.ending import end_now
from cpudist.errors import UserError
from cpudist.waiting import bounded

Transport = Literal["mpi", "ofi"]

_FINALIZE_SECONDS = 60.0  # for the other ranks to come to their end


@cache
def load() -> Any:
    """Return the extension module ``cpudist_ccl`` with oneCCL's settings in place, compiling it if needed.

    Raises:
        UserError: when it cannot be compiled or loaded; the line names the remedy.
    """
    path = ensure_built()
    transport = apply_settings()
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
    module.transport = transport  # type: ignore[attr-defined]
    atexit.register(_leave, module)
    # A forked child must not take its parent's place in the job; the module has shut itself in the child.
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave))
    return module


def transport() -> Transport:
    """What oneCCL carries messages with in this process."""
    chosen: Transport = load().transport
    return chosen


def apply_settings() -> Transport:
    """Put what oneCCL is to find at its start into the environment, except where the user has."""
    transport = choose_transport()
    for name, value in settings(transport).items():
        os.environ.setdefault(name, value)
    return transport


def choose_transport() -> Transport:
    """What oneCCL should carry messages with: MPI where a launcher has made an MPI world that it can join.

    oneCCL speaks the MPICH ABI (Intel MPI, MPICH), not Open MPI's; everywhere else it uses libfabric (OFI) by itself.
    The environment is detected here and not handed down by a job: `init_process_group("ccl")` comes here without one.
    """
    if chosen := os.environ.get("CCL_ATL_TRANSPORT"):
        return "mpi" if chosen == "mpi" else "ofi"
    return "mpi" if _in_mpi_world(os.environ) and (find_oneccl().lib / "libmpi.so.12").exists() else "ofi"


def _in_mpi_world(variables: Mapping[str, str]) -> bool:
    environment = environments.detect(variables)
    try:
        rendezvous = environment.rendezvous()
    except UserError:  # torch's variables, but not all: `init_process_group` was told how to meet, by a file or a store
        return False
    if not (isinstance(rendezvous, environments.OverMpi) and rendezvous.mpich_abi):
        return False
    # Processes that a rank has spawned inherit its variables; then WORLD_SIZE is theirs.
    return variables.get("WORLD_SIZE") in (None, str(environment.placement().size))


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
        end_now(1)
    # After an uncaught exception MPI is not ended: the launcher then takes this rank for crashed and ends the others.
    failed = getattr(sys, "last_value", None) is not None
    if not failed:
        module.drain()
        if dist.is_initialized():
            dist.destroy_process_group()
        module.drain()
    module.close()
    if not failed and module.transport == "mpi":
        _finalize_mpi()


def _finalize_mpi() -> None:
    """End the MPI that oneCCL has started.

    oneCCL does so with its last communicator, but that lives on where something still refers to its group, such as a
    model in DDP. A rank that ends without MPI_Finalize counts as crashed.
    """
    if getattr(getattr(sys.modules.get("mpi4py"), "rc", None), "finalize", None) is not None:
        return  # mpi4py will do it, or whoever told it not to, such as rendezvous/mpi.py
    try:
        mpi = ctypes.CDLL("libmpi.so.12", mode=os.RTLD_NOLOAD)
    except OSError:  # never loaded: no group was made
        return
    started, ended = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(started))
    mpi.MPI_Finalized(ctypes.byref(ended))
    if started.value and not ended.value:
        with bounded("MPI_Finalize", _FINALIZE_SECONDS):
            mpi.MPI_Finalize()
