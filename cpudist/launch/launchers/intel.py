"""Intel MPI's mpirun: a shell script around a Hydra of its own."""

from __future__ import annotations

import re
from pathlib import Path

from cpudist.launch.launchers.base import Death, Start
from cpudist.launch.launchers.hydra import Hydra

_BANNER = re.compile(r"= +RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\s+= +KILLED BY SIGNAL: (?P<signal>\d+)")


class Intel(Hydra):
    """Intel MPI 2021. Its script runs the first mpiexec.hydra on PATH, which may be MPICH's, so it is left out."""

    mpi = "intel-mpi"

    def __init__(self, program: Path, version: str) -> None:
        behind = program.with_name("mpiexec.hydra")
        super().__init__(behind if behind.exists() else program, version)

    @classmethod
    def answers(cls, version: str) -> bool:
        return "Intel(R) MPI Library" in version

    def pinning(self, start: Start) -> list[str]:
        by_user = any(name.startswith("I_MPI_PIN") for name in start.variables)
        return [] if by_user else ["-genv", "I_MPI_PIN", "off"]

    def deaths(self, said: str) -> list[Death]:
        return [Death(int(found["signal"]), int(found["rank"]), found["host"]) for found in _BANNER.finditer(said)]
