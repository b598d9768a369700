"""MPICH's mpirun (Hydra)."""

from __future__ import annotations

import re

from cpudist.launch.launchers.base import Death, Start
from cpudist.launch.launchers.hydra import Hydra

_BANNER = re.compile(
    r"= +PID \d+ RUNNING AT (?P<host>\S+)\s.*?EXIT STRING: [^\n]*\(signal (?P<signal>\d+)\)", re.DOTALL
)


class Mpich(Hydra):
    """MPICH 3.x to 5.x."""

    mpi = "mpich"

    @classmethod
    def answers(cls, version: str) -> bool:
        return "HYDRA build details" in version

    def pinning(self, start: Start) -> list[str]:
        words = ["-bind-to", "none"]
        # Up to 4.0, without -ppn and slots it counts one for each host, on which Intel MPI's library aborts.
        return words if start.hostfile else [*words, "-ppn", str(start.ranks)]

    def deaths(self, said: str) -> list[Death]:
        # It names the host but not the rank, and of several deaths the first alone.
        return [Death(int(found["signal"]), host=found["host"]) for found in _BANNER.finditer(said)][:1]
