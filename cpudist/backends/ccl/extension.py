"""Loads the compiled extension module and starts oneCCL with its settings, once per process.

oneCCL takes its settings from the environment when it starts. The user's own settings are kept.
"""

import atexit
import contextlib
import ctypes
import os
import sys
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Literal

from cpudist import launchers
from cpudist.backends.ccl.compilation import MODULE, ensure_built
from cpudist.backends.ccl.toolchain import find_libraries
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.patching.undo import Changes
from cpudist.processes import rank_or_child
from cpudist.processes.ending import end_now
from cpudist.rendezvous import mpi

Transport = Literal["mpi", "ofi"]

# Libraries with MPICH's ABI (the second name is Debian's), of Open MPI, and with the standard ABI of MPI 5.
_MPI_LIBRARIES = ("libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi_abi.so.1")
_START_SECONDS = 300.0  # Time limit of MPI_Init, which waits for the other ranks.
# In MPI's own allreduce on more than two hosts, several send to one at once, and a slow network drops packets. It
# reaches 0.5 of 100 Mbit/s on three hosts, 0.8 on four; rings reach 0.95. Rings are slower for small sums.
_RINGS = "direct:0-262143;ring:262144-max"


@cache
def load() -> Any:
    """Return the extension module, compiled if needed, with oneCCL's settings in place; UserError if that fails."""
    path = ensure_built()
    chosen = apply_settings() if path.name == MODULE else None
    loader = ExtensionFileLoader("cpudist_ccl", str(path))
    spec = spec_from_file_location("cpudist_ccl", path, loader=loader)
    assert spec is not None
    try:
        import torch  # noqa: F401  (loads the libraries that the module links to)

        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise UserError(f"the compiled ccl backend does not load: {error}; remove {path.parent}") from None
    if chosen == "mpi":
        # Otherwise oneCCL would initialise MPI, and finalise it with its last communicator. Later groups would fail.
        _prepare(mpi.initialise(_START_SECONDS, _own_mpi()))
    module.transport = chosen  # type: ignore[attr-defined]
    module.sums = None  # type: ignore[attr-defined]
    atexit.register(_leave, module)
    # A forked child is no rank of the job, and the module's own fork handler has closed the module there.
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave))
    return module


def start(chosen: str | None, hosts: int) -> None:
    """Start oneCCL, once per process, with an allreduce algorithm that is the same on all ranks.

    Args:
        chosen: the algorithm that other ranks use already or that a user has set; None: the default.
        hosts: number of hosts of the job if all ranks of the job call this; otherwise 1.
    """
    module = load()
    if module.sums is None:
        default = "" if module.transport == "ofi" else _RINGS if hosts > 2 else "direct"
        module.sums = default if chosen is None else chosen
        with Changes() as changes:  # undone, because a rank's child has no MPI and needs another algorithm
            if module.sums:
                changes.variable("CCL_ALLREDUCE", module.sums)
            module.start()


def requested_transport() -> str:
    """Return CPUDIST_TRANSPORT. If it is not set, return "mpi" for a module without oneCCL, otherwise ""."""
    named = os.environ.get("CPUDIST_TRANSPORT", "")
    has_oneccl = bool(load().library_version())
    if named == "oneccl" and not has_oneccl:
        raise UserError("CPUDIST_TRANSPORT=oneccl needs oneCCL; unset it, or pip install 'cpudist[build]'")
    return named or ("" if has_oneccl else "mpi")


@cache
def start_mpi() -> None:
    """Let the launcher's own MPI carry messages instead of oneCCL; UserError if there is no MPI world."""
    world = mpi_world()
    if world is None:
        remedy = "unset CPUDIST_TRANSPORT" if load().library_version() else "use mpirun, or --backend gloo"
        raise UserError(f"MPI carries messages only between ranks that mpirun has started; {remedy}")
    _prepare(mpi.initialise(_START_SECONDS, world.library or _own_mpi()))
    load().use_mpi(_initialised_mpi())
    load().transport = "mpi"


@cache
def _prepare(mpi4py: Any) -> None:
    """Check that several threads may call MPI, and complete calls before MPI_Finalize, even if the script calls it."""
    level = mpi4py.Query_thread()
    if level < mpi4py.THREAD_SERIALIZED:
        remedy = "set mpi4py.rc.thread_level to 'multiple', or use --backend gloo"
        raise UserError(f"MPI was initialised for calls from one thread; {remedy}")
    if level < mpi4py.THREAD_MULTIPLE and mpi4py.COMM_WORLD.rank == 0:
        say(
            "warning: MPI takes one call at a time (MPI_THREAD_SERIALIZED); wait for collectives before calls of mpi4py"
        )
    # MPI_Finalize first deletes the attributes of MPI_COMM_SELF, which calls `delete_fn`.
    mpi4py.COMM_SELF.Set_attr(mpi4py.Comm.Create_keyval(delete_fn=lambda *_: _complete_calls()), None)


def _own_mpi() -> str | None:
    """Return the MPI library in oneCCL's folder of libraries, which has MPICH's ABI; None if there is none."""
    folder = find_libraries()
    library = folder and folder / "libmpi.so.12"
    return str(library) if library and library.exists() else None


def _initialised_mpi() -> str:
    started = ctypes.c_int()
    for name in _MPI_LIBRARIES:
        with contextlib.suppress(OSError):  # this library is not loaded; several may be, oneCCL's and the launcher's
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD).MPI_Initialized(ctypes.byref(started))
        if started.value:
            return name
    remedy = f"use one whose library is {', '.join(_MPI_LIBRARIES)}"
    raise UserError(f"the launcher's MPI has an ABI that cpudist does not know; {remedy}")


def apply_settings() -> Transport:
    """Set oneCCL's variables that the user has not set, and return the transport; oneCCL reads them when it starts."""
    chosen = transport()
    os.environ["CCL_ATL_TRANSPORT"] = chosen  # overwrites the value that a rank's child has inherited
    # Turn off oneCCL's polling thread. It slows down a computing core, and with it a small allreduce over OFI takes
    # 8 ms instead of 24 us. The engine (csrc/engine.hpp) makes progress instead.
    os.environ.setdefault("CCL_WORKER_OFFLOAD", "0")
    # By default oneCCL chooses the algorithm by the bytes of the calling rank. Ranks with different counts then choose
    # different algorithms and deadlock (seen in a scatter of 9.6 MB on 2 ranks).
    os.environ.setdefault("CCL_ALLTOALLV", "scatter")
    # Otherwise every rank prints oneCCL's warnings, also about the settings above.
    os.environ.setdefault("CCL_LOG_LEVEL", "error")
    return chosen


def transport() -> Transport:
    """Choose oneCCL's transport: MPI if the launcher has created an MPI world that oneCCL can join, otherwise OFI.

    oneCCL needs the MPICH ABI (Intel MPI, MPICH), not Open MPI's; without it oneCCL uses libfabric (OFI). The launcher
    is detected here, because `init_process_group("ccl")` may be called without a job.
    """
    if rank_or_child.started_by_rank():
        return "ofi"
    if chosen := os.environ.get("CCL_ATL_TRANSPORT"):
        return "mpi" if chosen == "mpi" else "ofi"
    world = mpi_world()
    return "mpi" if world is not None and world.mpich_abi and _own_mpi() else "ofi"


def mpi_world() -> launchers.OverMpi | None:
    """Return the MPI world that the launcher has created for this process; None if there is none."""
    if rank_or_child.started_by_rank():
        return None
    launcher = launchers.detect()
    try:
        rendezvous = launcher.rendezvous()
    except UserError:  # torchrun's variables are incomplete: the script gives `init_process_group` a file or a store
        return None
    if not isinstance(rendezvous, launchers.OverMpi):
        return None
    # MPI variables that contradict WORLD_SIZE are ignored, as inherited from another job.
    return rendezvous if os.environ.get("WORLD_SIZE") in (None, str(launcher.placement().size)) else None


def _complete_calls() -> None:
    """Complete this rank's calls, because peers may wait for them, and destroy its groups."""
    import torch.distributed as dist

    load().drain()
    if dist.is_initialized():
        dist.destroy_process_group()
    load().drain()


def _leave(module: Any) -> None:
    """Shut oneCCL down at exit. After a failure exit at once, as oneCCL's destructors would wait for lost peers."""
    if not module.usable():
        end_now(1)
    if getattr(sys, "last_value", None) is None:  # no uncaught exception
        _complete_calls()
    module.close()
