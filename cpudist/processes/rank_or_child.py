"""Distinguish a rank from its children, which inherit the launcher's variables but not the connection to MPI."""

import os
import stat

_PROCESS = "CPUDIST_RANK_PROCESS"  # the rank's process id, for its children
_CONNECTION = "PMI_FD"  # file descriptor of the socket by which Hydra and Slurm's pmi2 connect a rank


def mark() -> None:
    """Mark this process as the rank for its children; call this once MPI is initialised.

    Also hide the rank's connection from the children, so that MPI in a child starts a world of one process.
    """
    os.environ.setdefault(_PROCESS, str(os.getpid()))
    os.environ.pop(_CONNECTION, None)


def started_by_rank() -> bool:
    """Return whether this process descends from a rank, or was started without the socket to the launcher."""
    own, connection = str(os.getpid()), os.environ.get(_CONNECTION)
    if os.environ.get(_PROCESS, own) != own:
        return True
    # Python's subprocesses do not inherit the socket; their MPI_Init would write to another file of the same number.
    try:
        return connection is not None and not stat.S_ISSOCK(os.fstat(int(connection)).st_mode)
    except (OSError, ValueError):
        return True
