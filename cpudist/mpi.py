"""MPI through mpi4py, on the launcher's own MPI library, for the one thing it is needed for: to meet.

With another library than the launcher's every rank is silently alone in a world of one. So the library is chosen here,
and a world that MPI and the launcher's variables do not agree on is an error.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cpudist.errors import UserError
from cpudist.launchers.base import Launcher, Placement


def join(launcher: Launcher, placement: Placement, timeout: float) -> Any:
    """Initialise MPI and return ``MPI.COMM_WORLD``.

    Raises:
        UserError: mpi4py or an MPI library is missing, or MPI's world is not the launcher's.
    """
    if launcher.name == "mpich" and "I_MPI_MPIRUN" in os.environ:
        # Intel's mpirun is a script that runs the first mpiexec.hydra on PATH; with MPICH's, MPI_Init aborts.
        raise UserError(
            "Intel MPI's mpirun has started MPICH's mpiexec.hydra, which comes first on PATH; "
            f"activate the environment, or: export PATH={sys.prefix}/bin:$PATH"
        )
    library = launcher.libmpi(os.environ)
    if library is not None and "mpi4py.MPI" not in sys.modules:
        os.environ.setdefault("MPI4PY_LIBMPI", library)
    mpi = _initialised(launcher, timeout)
    world = mpi.COMM_WORLD
    if (world.size, world.rank) != (placement.size, placement.rank):
        version = mpi.Get_library_version().splitlines()[0].strip("\0 ")
        raise UserError(
            f"{launcher.name} says rank {placement.rank} of {placement.size}, but MPI says rank {world.rank} of "
            f"{world.size}: {version} is not the launcher's MPI library; use that library's own mpirun, or set "
            "MPI4PY_LIBMPI to the launcher's libmpi.so"
        )
    return world


def _initialised(launcher: Launcher, timeout: float) -> Any:
    """The module ``mpi4py.MPI`` with MPI started, or the end of this process when that takes too long."""
    import mpi4py

    # mpi4py's own MPI_Init holds the GIL, so nothing could end a process that waits in it for a rank that is gone.
    mpi4py.rc.initialize = False
    # Its MPI_Finalize at exit would also come from a forked child.
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"{launcher.name} started this process, but mpi4py finds no MPI library: {str(error).splitlines()[0]}; "
            "install Intel MPI: pip install 'cpudist[ccl]', or set MPI4PY_LIBMPI to the launcher's libmpi.so"
        ) from None
    if not MPI.Is_initialized():
        provided = ctypes.c_int()
        with bounded("MPI_Init", timeout):
            ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided))
        atexit.register(_finalize, MPI)
        os.register_at_fork(after_in_child=lambda: atexit.unregister(_finalize))
    return MPI


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def addresses() -> list[str]:
    """This host's addresses that others may reach it at: IPv4 first, no loopback ones unless there are no others."""
    import socket

    import psutil

    found = [
        (family, entry.address)
        for interface, entries in psutil.net_if_addrs().items()
        if psutil.net_if_stats()[interface].isup
        for entry in entries
        if (family := entry.family) in (socket.AF_INET, socket.AF_INET6)
    ]
    outward = [
        address
        for family in (socket.AF_INET, socket.AF_INET6)
        for found_family, address in found
        if found_family == family and not address.startswith(("127.", "::1", "fe80"))
    ]
    return outward or ["127.0.0.1"]


@contextmanager
def bounded(what: str, timeout: float) -> Iterator[None]:
    """End the process when what cannot be interrupted takes longer than ``timeout`` seconds."""

    def end() -> None:
        print(
            f"cpudist: {what} did not finish within {timeout:g} s: a rank is gone or cannot be reached; ending",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
