"""MPICH 3 to 5, whose launcher is Hydra."""

import contextlib
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from cpudist.errors import UserError
from cpudist.launchers.launcher import OverMpi
from cpudist.launchers.mpi_launcher import Host, MpiLauncher, MpirunOptions
from cpudist.processes import procfs

_OPTIONS = {"-n": "ranks", "-np": "ranks", "-ppn": "per node", "-perhost": "per node"}


class Mpich(MpiLauncher):
    """Hydra, and every other launcher that uses PMI-1 and sets PMI_RANK.

    Started as `mpirun -n N` without `-ppn` or slots in a hostfile, MPICH 4.0's Hydra assumes one slot per host, and
    Intel MPI's library then aborts in MPI_Init ("MPIDU_bc_table_create"). A rank's variables do not show this.
    """

    name = "mpich"
    placement_variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    rank_variable = "PMI_RANK"
    option = "mpich"
    programs: ClassVar[tuple[str, ...]] = ("mpirun", "mpiexec", "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra")
    daemons = ("hydra_bstrap_proxy", "hydra_pmi_proxy", "pmi_proxy")
    hostfile_option = "-f"
    by_name = True
    # Hydra reports only the first killed rank, with its host, and without the signal if Hydra's own processes fail
    # while it ends the other ranks. The last `.*` takes the rest of the output, for one match at most.
    killed: ClassVar = re.compile(
        r"= +PID \d+ RUNNING AT (?P<host>\S+)\s.*?"
        r"(EXIT STRING: [^\n]*\(signal (?P<signal>\d+)\)|terminated badly; aborting).*",
        re.DOTALL,
    )

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # `srun --mpi=pmi2`, Flux and PALS set PMI_RANK too, but no local rank. Hydra in a Slurm allocation starts its
        # proxies with srun, so its ranks have a Slurm step's variables, but also MPI_LOCALRANKID.
        others = {"SLURM_STEP_ID", "FLUX_TASK_RANK", "PALS_RANKID"}
        return "PMI_RANK" in variables and ("MPI_LOCALRANKID" in variables or not others & variables.keys())

    def rendezvous(self) -> OverMpi:
        # Intel's mpirun is a script that runs the first mpiexec.hydra on PATH. If it is MPICH's, MPI_Init aborts.
        if "I_MPI_MPIRUN" in self._variables:
            why = "Intel MPI's mpirun has started MPICH's mpiexec.hydra, which comes first on PATH"
            raise UserError(f"{why}; activate the environment, or: export PATH={sys.prefix}/bin:$PATH")
        return OverMpi()

    @property
    def requested_nodes(self) -> int | None:
        """The number of nodes that mpiexec's command line asks for; None on other hosts than mpiexec's."""
        for process in procfs.ancestors():
            if process.name in self.programs:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    return requested_nodes(procfs.command_line(process.pid))
        return None

    @classmethod
    def recognises(cls, version: str) -> bool:
        return "HYDRA build details" in version

    @classmethod
    def command(cls, program: Path, version: str, options: MpirunOptions) -> list[str]:
        # By default Hydra starts its proxies with srun inside a Slurm allocation, on the allocation's hosts.
        words = [str(program), "-launcher", "ssh" if options.hostfile else "fork", *cls._pinning_off(options)]
        if options.only_ipv6:
            if not cls.takes_ipv6:
                raise UserError("MPICH's mpirun needs IPv4, and this host's name has none: give --mpi intel or openmpi")
            words += ["-v6"]  # only Intel's Hydra has this option
        if options.hostfile:
            words += [cls.hostfile_option, options.hostfile]
        if options.interface:
            words += ["-iface", options.interface]
        if options.all_output:
            words += ["-prepend-rank"]
        return [*words, "-n", str(options.count), *options.program]

    @classmethod
    def hostfile_lines(cls, host: Host) -> list[str]:
        return [f"{host.name}:{host.slots}"]

    @classmethod
    def _pinning_off(cls, options: MpirunOptions) -> list[str]:
        words = ["-bind-to", "none"]
        # Up to 4.0, without -ppn and slots, Hydra assumes one slot per host (see the class).
        return words if options.hostfile else [*words, "-ppn", str(options.count)]


def requested_nodes(words: Sequence[str]) -> int | None:
    """Return ranks ÷ ranks per node of `mpirun -n 4 -ppn 2 …`; None if a number is missing.

    Hydra silently uses fewer nodes if its hostfile names too few hosts or has a line that it does not understand.
    """
    given: dict[str, int] = {}
    for option, value in itertools.pairwise(words):
        name = _OPTIONS.get(option)
        if name is not None and name not in given and value.isdecimal() and int(value) > 0:
            given[name] = int(value)
    return -(-given["ranks"] // given["per node"]) if len(given) == 2 else None
