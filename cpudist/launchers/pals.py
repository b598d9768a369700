"""HPE's PALS, the mpiexec of Cray systems under PBS (Aurora, Polaris, Crux, Derecho)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cpudist.errors import UserError
from cpudist.launchers.launcher import OverMpi, Placement
from cpudist.launchers.mpi_launcher import Host, MpiLauncher, MpirunOptions


class Pals(MpiLauncher):
    """The ranks use the MPI of the environment, with PMIx or Cray's own PMI.

    PALS does not set the number of all ranks. `cpudist launch` sets PMI_SIZE; without it, each host of the allocation
    is taken to have as many ranks as this one. The job ends with an error if MPI reports another number.
    """

    name = "pals"
    placement_variables = ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
    rank_variable = "PALS_RANKID"
    option = "pals"
    programs = ("mpiexec", "mpirun")
    hostfile_option = "--hostfile"
    by_name = True
    daemons = ()
    # PALS ends the other ranks by SIGTERM (15) and reports these ranks as well.
    killed: ClassVar = re.compile(r"(?P<host>\S+): rank (?P<rank>\d+) died from signal (?P<signal>(?!15\b)\d+)")

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # Slurm and Flux set PALS_RANKID as well, for Cray's MPI.
        return "PALS_RANKID" in variables and not {"SLURM_STEP_ID", "FLUX_TASK_RANK"} & variables.keys()

    def placement(self) -> Placement:
        if "PMI_SIZE" not in self._variables:
            self._variables["PMI_SIZE"] = str(self.integer("PALS_LOCAL_SIZE") * self._allocated_hosts())
        return super().placement()

    def rendezvous(self) -> OverMpi:
        return OverMpi()

    @classmethod
    def recognises(cls, version: str) -> bool:
        return re.match(r"mpiexec version \d", version) is not None

    @classmethod
    def command(cls, program: Path, version: str, options: MpirunOptions) -> list[str]:
        most = max(options.slots, default=0)
        if options.hostfile is None or any(slots != most for slots in options.slots[:-1]):
            remedy = "give --hostfile $PBS_NODEFILE and --ppn N"
            raise UserError(f"PALS starts ranks on hosts of a file, as many on each; {remedy}")
        words = [str(program), "--cpu-bind", "none", "--line-buffer", *["--label"] * options.all_output]
        words += [cls.hostfile_option, options.hostfile, "--env", f"PMI_SIZE={options.count}", "--ppn", str(most)]
        return [*words, "-n", str(options.count), *options.program]

    @classmethod
    def hostfile_lines(cls, host: Host) -> list[str]:
        return [host.name]

    def _allocated_hosts(self) -> int:
        try:
            return len(set(Path(self._variables["PBS_NODEFILE"]).read_text().split()))
        except (KeyError, OSError):
            remedy = "give mpiexec --env PMI_SIZE=N with the N of -n"
            raise UserError(f"PALS gives no total number of ranks, and PBS_NODEFILE cannot be read; {remedy}") from None
