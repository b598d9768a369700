"""Intel MPI 2021, whose mpirun is a shell script that runs Intel's own Hydra."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cpudist.launchers.launcher import OverMpi
from cpudist.launchers.mpi_launcher import Host, MpirunOptions
from cpudist.launchers.mpich import Mpich


class IntelMpi(Mpich):
    """The ranks have MPICH's variables; Intel's Hydra adds a job id."""

    name = "intel-mpi"
    option = "intel"
    programs = ("mpirun", "mpiexec", "mpiexec.hydra")
    hostfile_option = "-machinefile"  # -f reads "node1:4" too, but ignores the 4
    takes_ipv6 = True
    killed: ClassVar = re.compile(
        r"= +RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\s+= +KILLED BY SIGNAL: (?P<signal>\d+)"
    )
    banner = re.compile(rb"={20,}\n=   BAD TERMINATION.*\n(?:=   .*\n)+={20,}\n")

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # setvars.sh sets I_MPI_ROOT in every shell, and Intel's script sets I_MPI_MPIRUN even if it runs MPICH's
        # mpiexec.hydra. Only Intel's Hydra sets I_MPI_HYDRA_UUID.
        return "I_MPI_HYDRA_UUID" in variables and super().detect(variables)

    @classmethod
    def recognises(cls, version: str) -> bool:
        return "Intel(R) MPI Library" in version

    @classmethod
    def command(cls, program: Path, version: str, options: MpirunOptions) -> list[str]:
        # Bypass Intel's script: it runs the first mpiexec.hydra on PATH, which may be MPICH's.
        behind = program.with_name("mpiexec.hydra")
        return super().command(behind if behind.exists() else program, version, options)

    @classmethod
    def hostfile_lines(cls, host: Host) -> list[str]:
        # Write a line for each rank: the format cannot give an IPv6 address a number of ranks.
        return [host.name] * (host.slots or 0)

    @classmethod
    def _pinning_off(cls, options: MpirunOptions) -> list[str]:
        by_user = any(name.startswith("I_MPI_PIN") for name in options.variables)
        return [] if by_user else ["-genv", "I_MPI_PIN", "off"]

    def rendezvous(self) -> OverMpi:
        return OverMpi()
