"""`cpudist.notebook_launcher`: one notebook, or other Python process, on each node starts that node's ranks."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.environments.base import Environment, InStore, Placement

JOB = "CPUDIST_NOTEBOOK"  # names the attempt whose rank this is

# What other launchers set for the process that is the notebook, and its ranks are not to take for theirs: Hydra, PMIx,
# Open MPI, torchrun, Kubeflow, a Slurm step.
_OTHERS = ("PMI_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "I_MPI_HYDRA_", "OMPI_COMM_", "TORCHELASTIC_", "PET_")
_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID")


class Notebook(Environment):
    """A rank that `cpudist.notebook_launcher` has started; it keeps the store in which they meet."""

    name = "notebook"
    rank_variable = "RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return JOB in variables

    def placement(self) -> Placement:
        return Placement(
            rank=self.integer("RANK"),
            size=self.integer("WORLD_SIZE"),
            local_rank=self.integer("LOCAL_RANK"),
            local_size=self.integer("LOCAL_WORLD_SIZE"),
            node_rank=self.integer("GROUP_RANK"),
            node_count=self.integer("GROUP_WORLD_SIZE"),
        )

    def rendezvous(self) -> InStore:
        return InStore(self._variables["MASTER_ADDR"], self.integer("MASTER_PORT"), self._variables[JOB], self.token)


def rank_variables(placement: Placement, meeting: InStore) -> dict[str, str]:
    """What the launcher sets for a rank, so that `Notebook` and libraries that know torchrun's variables read it."""
    return {
        JOB: meeting.job,
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_size),
        "GROUP_RANK": str(placement.node_rank),
        "GROUP_WORLD_SIZE": str(placement.node_count),
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
        "CPUDIST_TOKEN": meeting.token,
    }


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process without those by which another launcher tells it its rank."""
    return {name: value for name, value in variables.items() if not name.startswith(_OTHERS) and name not in _STEP}
