"""Which process the launcher has started. A rank's children inherit its variables, but not its connection to MPI."""

from __future__ import annotations

import os

_PROCESS = "CPUDIST_RANK_PROCESS"  # the rank's process id, for its children


def claim() -> None:
    """Make this process the rank if an MPI launcher has started it, and none that it descends from is one already."""
    if "PMI_RANK" in os.environ or "PMIX_RANK" in os.environ:
        os.environ.setdefault(_PROCESS, str(os.getpid()))


def started_by_rank() -> bool:
    """Return whether this process descends from a rank."""
    own = str(os.getpid())
    return os.environ.get(_PROCESS, own) != own


def keep_connection() -> None:
    """Keep children from joining MPI with this rank's connection: without it, each is a world of its own.

    Called once MPI has started. A child does not inherit the socket; its MPI_Init would write into another file with
    that number.
    """
    os.environ.pop("PMI_FD", None)
