"""MPI through mpi4py, on the launcher's own MPI library, for the one thing it is needed for: to meet.

With another library than the launcher's every rank is silently alone in a world of one. So the library is chosen here,
and a world that MPI and the launcher's variables do not agree on is an error.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from contextlib import nullcontext
from typing import Any

from cpudist.console import first_line
from cpudist.environments import OverMpi, Placement
from cpudist.errors import UserError
from cpudist.rendezvous import startup
from cpudist.waiting import bounded


def join(rendezvous: OverMpi, placement: Placement, timeout: float) -> Any:
    """Initialise MPI, once in a process, and return ``MPI.COMM_WORLD``.

    Raises:
        UserError: mpi4py or an MPI library is missing, or MPI's world is not the launcher's.
    """
    if rendezvous.library is not None and "mpi4py.MPI" not in sys.modules:
        os.environ.setdefault("MPI4PY_LIBMPI", rendezvous.library)
    mpi = _initialised(timeout, speaks=placement.rank == 0)
    world = mpi.COMM_WORLD
    if (world.size, world.rank) != (placement.size, placement.rank):
        version = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise UserError(
            f"the launcher says rank {placement.rank} of {placement.size}, but MPI says rank {world.rank} of "
            f"{world.size}: {version} is not the launcher's MPI library; use that library's own mpirun, or set "
            "MPI4PY_LIBMPI to the launcher's libmpi.so"
        )
    return world


def _initialised(timeout: float, *, speaks: bool) -> Any:
    """The module ``mpi4py.MPI`` with MPI started, or the end of this process when that takes too long.

    `speaks`: whether this is the rank that Intel MPI speaks on.
    """
    import mpi4py

    # mpi4py's own MPI_Init holds the GIL, so nothing could end a process that waits in it for a rank that is gone.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False  # its own MPI_Finalize at exit would also come from a forked child
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"an MPI launcher started this process, but mpi4py finds no MPI library: {first_line(error)}; "
            "install Intel MPI: pip install 'cpudist[ccl]', or set MPI4PY_LIBMPI to the launcher's libmpi.so"
        ) from None
    if not MPI.Is_initialized():
        provided = ctypes.c_int()
        with bounded("MPI_Init", timeout), startup.heard() if speaks else nullcontext():
            ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided))
        atexit.register(_finalize, MPI)
        os.register_at_fork(after_in_child=lambda: atexit.unregister(_finalize))
    return MPI


def _finalize(mpi: Any) -> None:
    """End MPI when all else has come to its end.

    Without a bound, as in any MPI program: a rank whose job is over may have long work left that others wait for here.
    """
    if not mpi.Is_finalized():
        ctypes.CDLL(mpi.__file__).MPI_Finalize()  # mpi4py's own holds the interpreter's lock
