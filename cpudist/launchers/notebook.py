"""`cpudist.notebook_launcher`: on each node a notebook, or another Python process, starts that node's ranks."""

from collections.abc import Mapping
from dataclasses import astuple

from cpudist.launchers.launcher import InStore, Launcher, Placement
from cpudist.launchers.pytorch import Torchrun

JOB = "CPUDIST_NOTEBOOK"  # names the job and the attempt of this rank

# Variables that other launchers may have set for the notebook's process. The ranks must not inherit them; otherwise
# they would be taken for ranks of other launchers: Hydra, PMIx, Open MPI, PALS, Flux, torchrun, Kubeflow, a Slurm step.
_OTHERS = ("PMI", "HYD", "MPI_LOCAL", "I_MPI_HYDRA_", "OMPI_COMM_", "PALS_", "FLUX_TASK_", "TORCHELASTIC_", "PET_")
_STEP = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID")


class Notebook(Launcher):
    """The process that calls `cpudist.notebook_launcher` starts a node's ranks; node 0's serves the store."""

    name = "notebook"
    placement_variables = Torchrun.placement_variables
    rank_variable = "RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return JOB in variables

    def rendezvous(self) -> InStore:
        return InStore(self._variables["MASTER_ADDR"], self.integer("MASTER_PORT"), self._variables[JOB], self.token)


def rank_variables(placement: Placement, store: InStore) -> dict[str, str]:
    """Return a rank's environment variables: `Notebook`'s own, and torchrun's for other libraries."""
    numbers = dict(zip(Notebook.placement_variables, map(str, astuple(placement)), strict=True))
    where = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), JOB: store.job}
    return {**numbers, **where, **({"CPUDIST_TOKEN": store.token} if store.token else {})}


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` without the ones that another launcher sets for its ranks."""
    return {name: value for name, value in variables.items() if not name.startswith(_OTHERS) and name not in _STEP}
