"""Open MPI's mpirun (ORTE in 4.x, PRRTE in 5.x)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.environments.base import Environment, OverMpi, Placement

# Open MPI's MPI library under the name that no MPICH uses; the same from 2.x to 5.x.
_LIBRARY = "libmpi.so.40"
_LAUNCHER_PROGRAMS = {"orterun", "orted", "prterun", "prted", "prte", "mpirun", "mpiexec"}


class OpenMpi(Environment):
    """Open MPI starts ranks that only its own MPI library can join."""

    name = "open-mpi"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "OMPI_COMM_WORLD_RANK" in variables

    def placement(self) -> Placement:
        # OMPI_COMM_WORLD_NODE_RANK is no number of a node: it counts the processes of all jobs on this one.
        return Placement(
            rank=self.integer("OMPI_COMM_WORLD_RANK"),
            size=self.integer("OMPI_COMM_WORLD_SIZE"),
            local_rank=self.integer("OMPI_COMM_WORLD_LOCAL_RANK"),
            local_size=self.integer("OMPI_COMM_WORLD_LOCAL_SIZE"),
        )

    def rendezvous(self) -> OverMpi:
        # By itself mpi4py takes the environment's libmpi.so, which may be Intel's: every rank is then a job of its own.
        return OverMpi(self._library(), mpich_abi=False)

    def _library(self) -> str:
        """The library beside the launcher that runs us; otherwise its bare name, for the loader to find."""
        beside = (directory / _LIBRARY for directory in _library_directories(self._variables))
        return next((str(path) for path in beside if path.exists()), _LIBRARY)


def _library_directories(variables: Mapping[str, str]) -> Iterator[Path]:
    if directory := variables.get("OMPI_LIBDIR_LOC"):  # Open MPI 5 says it
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
