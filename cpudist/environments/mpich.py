"""MPICH's mpirun (Hydra)."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence

from cpudist.environments.base import Environment, OverMpi, Placement
from cpudist.errors import UserError

_LAUNCHER_PROGRAMS = {"mpiexec.hydra", "mpiexec", "mpirun", "mpirun.mpich", "mpiexec.mpich"}
_OPTIONS = {"-n": "ranks", "-np": "ranks", "-ppn": "per node", "-perhost": "per node"}


class Mpich(Environment):
    """Hydra, and whatever else speaks PMI-1 and sets PMI_RANK.

    Started as `mpirun -n N` without `-ppn` or slots in a hostfile, MPICH 4.0's Hydra counts one slot per host, and
    Intel MPI's library aborts on that in MPI_Init ("MPIDU_bc_table_create"). Nothing in a rank's environment shows it.
    """

    name = "mpich"
    rank_variable = "PMI_RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # `srun --mpi=pmi2` sets PMI_RANK too, but no local rank. The other way round Hydra inside a Slurm allocation
        # starts its proxies with srun, so its ranks carry a Slurm step's variables: only MPI_LOCALRANKID tells.
        return "PMI_RANK" in variables and ("MPI_LOCALRANKID" in variables or "SLURM_STEP_ID" not in variables)

    def placement(self) -> Placement:
        return Placement(
            rank=self.integer("PMI_RANK"),
            size=self.integer("PMI_SIZE"),
            local_rank=self.optional_integer("MPI_LOCALRANKID"),
            local_size=self.optional_integer("MPI_LOCALNRANKS"),
        )

    def rendezvous(self) -> OverMpi:
        self._check_launcher()
        return OverMpi()

    @property
    def nodes_asked_for(self) -> int | None:
        """From mpiexec's own command line, seen from ranks on its host: nothing that Hydra hands over tells."""
        import psutil

        with contextlib.suppress(psutil.Error):  # another user's process, or gone
            for process in psutil.Process().parents():
                if process.name() in _LAUNCHER_PROGRAMS:
                    return nodes_asked_for(process.cmdline())
        return None

    def _check_launcher(self) -> None:
        # Intel's mpirun is a script that runs the first mpiexec.hydra on PATH; with MPICH's, MPI_Init aborts.
        if "I_MPI_MPIRUN" in self._variables:
            raise UserError(
                "Intel MPI's mpirun has started MPICH's mpiexec.hydra, which comes first on PATH; "
                f"activate the environment, or: export PATH={sys.prefix}/bin:$PATH"
            )


def nodes_asked_for(words: Sequence[str]) -> int | None:
    """What `mpirun … -n 4 -ppn 2 …` asks for: ranks by ranks on a node; None where it does not say both.

    Hydra itself puts ranks elsewhere in silence, where its hostfile has a line that it does not understand or names
    too few hosts.
    """
    asked: dict[str, int] = {}
    for option, value in itertools.pairwise(words):
        name = _OPTIONS.get(option)
        if name is not None and name not in asked and value.isdecimal() and int(value) > 0:
            asked[name] = int(value)
    return -(-asked["ranks"] // asked["per node"]) if len(asked) == 2 else None
