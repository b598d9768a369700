"""Loads the compiled extension module and starts oneCCL, once in a process, with the settings that it needs.

oneCCL takes its settings from the environment when it starts. The user's own settings are kept.
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

from cpudist import launchers, rank_process
from cpudist.backends.ccl.compilation import ensure_built
from cpudist.backends.ccl.toolchain import find_libraries
from cpudist.changes import Changes
from cpudist.console import end_now
from cpudist.errors import UserError
from cpudist.waiting import bounded

Transport = Literal["mpi", "ofi"]

_THREAD_MULTIPLE = 3  # in the ABI of MPICH, which Intel MPI shares
_START_SECONDS = 300.0  # for the other ranks to be started
_FINALIZE_SECONDS = 60.0  # bound on waiting for the other ranks
# MPI's own sums make several hosts send to one at once where there are more than two, and a slow network drops packets
# then: at 100 Mbit/s three hosts reach 0.5 of the rate and four 0.8, in rings 0.95. Small sums take longer in rings.
_RINGS = "direct:0-262143;ring:262144-max"


@cache
def load() -> Any:
    """Return the extension module ``cpudist_ccl`` with oneCCL's settings in place, compiling it if needed.

    Raises:
        UserError: it cannot be compiled or loaded; the line names the remedy.
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
    if transport == "mpi":
        _start_mpi()
    module.transport = transport  # type: ignore[attr-defined]
    module.sums = None  # type: ignore[attr-defined]
    atexit.register(_leave, module)
    # A forked child is no rank of the job; the module's own fork handler has closed it in the child.
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave))
    return module


def start(chosen: str | None, hosts: int) -> None:
    """Start oneCCL, once in a process, with an algorithm of sums that all ranks share.

    Args:
        chosen: the algorithm of ranks that have started it before, or whose user has set one; None: none has.
        hosts: of the job, where all of its ranks call this; otherwise 1.
    """
    module = load()
    if module.sums is None:
        default = "" if module.transport == "ofi" else _RINGS if hosts > 2 else "direct"
        module.sums = default if chosen is None else chosen
        with Changes() as changes:  # undone: a child of a rank has no MPI, and so other algorithms
            if module.sums:
                changes.variable("CCL_ALLREDUCE", module.sums)
            module.start()


def apply_settings() -> Transport:
    """Set oneCCL's variables that the user has not set, and return the transport; oneCCL reads them when it starts."""
    transport = choose_transport()
    for name, value in settings(transport).items():
        os.environ.setdefault(name, value)
    os.environ["CCL_ATL_TRANSPORT"] = transport  # a rank's child has inherited the rank's
    return transport


def choose_transport() -> Transport:
    """Choose oneCCL's transport: MPI where a launcher has made an MPI world that oneCCL can join.

    oneCCL speaks the MPICH ABI (Intel MPI, MPICH), not Open MPI's; everywhere else it uses libfabric (OFI) by itself.
    The environment is detected here and not handed down by a job: `init_process_group("ccl")` comes here without one.
    """
    if rank_process.started_by_rank():
        return "ofi"
    if chosen := os.environ.get("CCL_ATL_TRANSPORT"):
        return "mpi" if chosen == "mpi" else "ofi"
    return "mpi" if _in_mpi_world(os.environ) and (find_libraries() / "libmpi.so.12").exists() else "ofi"


def _in_mpi_world(variables: Mapping[str, str]) -> bool:
    launcher = launchers.detect(variables)
    try:
        rendezvous = launcher.rendezvous()
    except UserError:  # some of torch's variables are missing: `init_process_group` was given a file or a store
        return False
    if not (isinstance(rendezvous, launchers.OverMpi) and rendezvous.mpich_abi):
        return False
    # Processes may inherit MPI variables, but have a WORLD_SIZE of their own.
    return variables.get("WORLD_SIZE") in (None, str(launcher.placement().size))


def settings(transport: Transport) -> dict[str, str]:
    """Return the environment variables of oneCCL's settings."""
    return {
        "CCL_ATL_TRANSPORT": transport,
        # No polling thread of oneCCL's own: it slows down a computing core, and over OFI a small allreduce takes 8 ms
        # instead of 24 us. csrc/engine.hpp makes progress instead.
        "CCL_WORKER_OFFLOAD": "0",
        # By default oneCCL chooses an algorithm by this rank's bytes. Ranks with different shares then choose
        # differently and wait for each other for ever (a scatter of 9.6 MB at 2 ranks).
        "CCL_ALLTOALLV": "scatter",
        # Every rank would print its warnings, among others about the settings above.
        "CCL_LOG_LEVEL": "error",
    }


def _start_mpi() -> None:
    """Start MPI, unless a job or mpi4py has.

    Otherwise oneCCL starts it, and ends it with the last communicator. MPI can be started only once in a process, so no
    group could be made after that.
    """
    mpi = _loaded_mpi() or ctypes.CDLL(str(find_libraries() / "libmpi.so.12"), mode=ctypes.RTLD_GLOBAL)
    started, provided = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(started))
    if not started.value:
        with bounded("MPI_Init", _START_SECONDS):
            mpi.MPI_Init_thread(None, None, _THREAD_MULTIPLE, ctypes.byref(provided))
    rank_process.mark()


def _leave(module: Any) -> None:
    """Shut oneCCL down at exit; after a failure end at once, before its destructors wait for lost peers."""
    import torch.distributed as dist

    if not module.usable():
        end_now(1)
    # After an uncaught exception MPI is not finalized: the launcher reports this rank as crashed and ends the others.
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
    """Finalize the MPI that `_start_mpi` has started.

    A rank that exits without MPI_Finalize is reported as crashed by its launcher.
    """
    if getattr(getattr(sys.modules.get("mpi4py"), "rc", None), "finalize", None) is not None:
        return  # mpi4py does it, or the code that has told it not to, such as rendezvous/mpi.py
    mpi = _loaded_mpi()
    if mpi is None:
        return
    started, ended = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(started))
    mpi.MPI_Finalized(ctypes.byref(ended))
    if started.value and not ended.value:
        with bounded("MPI_Finalize", _FINALIZE_SECONDS):
            mpi.MPI_Finalize()


def _loaded_mpi() -> ctypes.CDLL | None:
    """The MPI library of this process, wherever it was loaded from; None if none was."""
    try:
        return ctypes.CDLL("libmpi.so.12", mode=os.RTLD_NOLOAD)
    except OSError:
        return None
