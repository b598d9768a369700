"""Open MPI's mpirun (ORTE in 4.x, PRRTE in 5.x)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.launchers.base import Launcher, Placement, Rendezvous

# Open MPI's MPI library under the name that no MPICH uses; the same from 2.x to 5.x.
_LIBRARY = "libmpi.so.40"
_LAUNCHER_PROGRAMS = {"orterun", "orted", "prterun", "prted", "prte", "mpirun", "mpiexec"}


class OpenMpi(Launcher):
    """Open MPI starts ranks that only its own MPI library can join."""

    name = "open-mpi"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        return "OMPI_COMM_WORLD_RANK" in env

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        # OMPI_COMM_WORLD_NODE_RANK is no number of a node: it counts the processes of all jobs on this one.
        return Placement(
            rank=cls.integer(env, "OMPI_COMM_WORLD_RANK"),
            size=cls.integer(env, "OMPI_COMM_WORLD_SIZE"),
            local_rank=cls.integer(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
            local_size=cls.integer(env, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        )

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        return "mpi"

    @classmethod
    def libmpi(cls, env: Mapping[str, str]) -> str:
        """The library beside the launcher that runs us; otherwise its bare name, for the loader to find.

        By itself mpi4py takes the environment's libmpi.so, which may be Intel's: every rank is then a job of its own.
        """
        beside = (directory / _LIBRARY for directory in _library_directories(env))
        return next((str(path) for path in beside if path.exists()), _LIBRARY)


def _library_directories(env: Mapping[str, str]) -> Iterator[Path]:
    if directory := env.get("OMPI_LIBDIR_LOC"):  # Open MPI 5 says it
        yield Path(directory)
    for program in _ancestors():
        if program.name in _LAUNCHER_PROGRAMS:
            yield program.parent.parent / "lib"
            yield program.parent.parent / "lib64"


def _ancestors() -> Iterator[Path]:
    """The programs that this process's parents run, nearest first."""
    import psutil

    try:
        for process in psutil.Process().parents():
            yield Path(process.exe())
    except psutil.Error:  # another user's process, or gone: the launcher's own would have come before
        return
