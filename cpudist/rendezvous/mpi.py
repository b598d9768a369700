"""MPI through mpi4py, on the launcher's own MPI library. The job uses it only to find its store.

With another library than the launcher's, every rank would get a world of size 1, without an error. So the library is
chosen here, and `join` raises if MPI and the launcher's variables disagree about rank or size.
"""

import atexit
import ctypes
import os
import sys
from typing import Any

from cpudist.console import first_line
from cpudist.errors import UserError
from cpudist.launchers import OverMpi, Placement
from cpudist.processes import rank_or_child
from cpudist.waiting import bounded


def join(rendezvous: OverMpi, placement: Placement, timeout: float) -> Any:
    """Initialise MPI once in a process, and return ``MPI.COMM_WORLD``, or raise `UserError`."""
    if rank_or_child.started_by_rank():
        why = "a rank of the job has started this process, and it cannot be that rank too"
        remedy = "start it with the launcher, or by os.execvp, or give init_process_group its rank and an init_method"
        raise UserError(f"{why}; {remedy}")
    mpi = initialise(timeout, rendezvous.library, announces=placement.rank == 0)
    world = mpi.COMM_WORLD
    if (world.size, world.rank) != (placement.size, placement.rank):
        asked, found = (f"rank {one.rank} of {one.size}" for one in (placement, world))
        version = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        why = f"the launcher says {asked}, but MPI says {found}: {version} is not the launcher's MPI library"
        raise UserError(f"{why}; use that library's own mpirun, or set MPI4PY_LIBMPI to the launcher's libmpi.so")
    return world


def initialise(timeout: float, library: str | None, announces: bool = False) -> Any:
    """Initialise MPI, once in a process, and return ``mpi4py.MPI``; MPI is finalised at exit.

    If MPI_Init takes longer than `timeout` seconds, this process ends.

    Args:
        library: the MPI library, unless MPI4PY_LIBMPI names one; None: the one that mpi4py finds.
        announces: whether this rank reports a long wait.
    """
    import mpi4py

    if library is not None and "mpi4py.MPI" not in sys.modules:
        os.environ.setdefault("MPI4PY_LIBMPI", library)
    # mpi4py's own MPI_Init holds the GIL, so no thread could end a process that waits in MPI_Init for a lost rank.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False  # a forked child would also call its MPI_Finalize at exit
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = f"an MPI launcher started this process, but mpi4py finds no MPI library: {first_line(error)}"
        remedy = "pip install 'cpudist[ccl]', or set MPI4PY_LIBMPI to the launcher's libmpi.so (cpudist docs launch)"
        raise UserError(f"{why}; {remedy}") from None
    if not MPI.Is_initialized():
        provided = ctypes.c_int()
        with bounded("MPI_Init", timeout, announces):
            ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided))
        atexit.register(_finalize, MPI)
        os.register_at_fork(after_in_child=lambda: atexit.unregister(_finalize))
    rank_or_child.mark()
    return MPI


def _finalize(mpi: Any) -> None:
    """Finalise MPI at exit, without a time limit: ranks wait here for each other, and one may run much longer.

    After an uncaught exception the launcher reports a crash and ends the other ranks, because MPI is not finalised.
    """
    if getattr(sys, "last_value", None) is None and not mpi.Is_finalized():
        ctypes.CDLL(mpi.__file__).MPI_Finalize()  # mpi4py's own MPI_Finalize holds the GIL
