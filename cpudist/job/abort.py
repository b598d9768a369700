"""How a rank of a failed job ends: at once, and where the ranks have met over MPI with the job."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import NoReturn

from cpudist.ending import last_words
from cpudist.job.leftovers import end_launcher_after

_ABORT_SECONDS = 3.0  # for MPI to pass it on
_LAUNCHER_SECONDS = 8  # for the launcher to end all other ranks, and itself


def abort(status: int) -> NoReturn:
    """End this process without finalizers, which could wait for a lost peer; under MPI this ends the job."""
    try:
        last_words()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            _abort_mpi(mpi, status)
    finally:
        os._exit(status)


def _abort_mpi(mpi: object, status: int) -> None:
    # Where its launcher cannot be reached, MPI may wait for ever.
    end = threading.Timer(_ABORT_SECONDS, os._exit, [status])
    end.daemon = True
    end.start()
    end_launcher_after(_LAUNCHER_SECONDS)
    # The reason is on screen by now; MPI's own lines, one for every rank that aborts, would hide it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Not mpi4py's own: it holds the interpreter's lock, and the timer could not end the process.
    world = mpi.COMM_WORLD  # type: ignore[attr-defined]
    handle = mpi._handleof(world)  # type: ignore[attr-defined]
    kind = ctypes.c_int if mpi._sizeof(world) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p  # type: ignore[attr-defined]
    ctypes.CDLL(mpi.__file__).MPI_Abort(kind(handle), status)  # type: ignore[attr-defined]
