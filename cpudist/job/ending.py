"""How a rank of a failed job ends: at once, and under MPI with the job."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from cpudist.job.leftovers import end_launcher_after

_ABORT_SECONDS = 3.0  # for MPI to pass it on
_LAUNCHER_SECONDS = 8  # for the launcher to end all other ranks, and itself


def end_process(status: int) -> NoReturn:
    """End this process at once, without finalizers, which could wait for a lost peer. Under MPI this ends the job."""
    sys.stdout.flush()
    sys.stderr.flush()
    end_launcher_after(_LAUNCHER_SECONDS)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        # The reason is on screen by now; MPI's own lines, one for every rank that aborts, would hide it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        end = threading.Timer(_ABORT_SECONDS, os._exit, [status])  # where its launcher cannot be reached, it may wait
        end.daemon = True
        end.start()
        mpi.COMM_WORLD.Abort(status)
    os._exit(status)
