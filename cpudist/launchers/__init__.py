"""The launchers that start ranks, one file each (PyTorch's share one); `detect` finds the launcher of this process.

A file has everything specific to its launcher: the variables of its ranks and, for an MPI, how `cpudist
launch` starts a job with it, its hostfile, its messages, its processes and its pinning options. `mpis.py` lists the
MPIs and finds their mpirun; `one_world.py` lists the variables that libraries read. This package must not import
torch, MPI or jobs.
"""

import os
from collections.abc import Mapping

from cpudist.launchers.flux import Flux
from cpudist.launchers.launcher import Alone, AtAddress, InStore, Launcher, OverMpi, Placement, RendezvousMethod
from cpudist.launchers.mpis import MPIS
from cpudist.launchers.notebook import Notebook
from cpudist.launchers.pytorch import Env, PyTorchJobPod, Torchrun
from cpudist.launchers.single import Single
from cpudist.launchers.slurm import Slurm

__all__ = [
    "LAUNCHERS",
    "Alone",
    "AtAddress",
    "InStore",
    "Launcher",
    "OverMpi",
    "Placement",
    "RendezvousMethod",
    "detect",
]

# Launchers can be nested and variables are inherited, so the innermost launcher comes first:
# - torchrun runs inside all others: mpirun, srun or a pod may start one torchrun per node.
# - A pod of a PyTorchJob may run mpirun, which numbers the ranks of that pod only; PyTorchJobPod makes this an error.
# - mpirun inside a Slurm allocation starts its helpers with srun: the ranks inherit the variables of that step. So do
#   the tasks of a Flux instance that srun has started.
# - A notebook's ranks have no variables of other launchers. A process with both kinds was started by a rank.
# - RANK and WORLD_SIZE from a script under mpirun or srun add nothing to the launcher's own variables.
LAUNCHERS: tuple[type[Launcher], ...] = (Torchrun, PyTorchJobPod, *MPIS, Flux, Slurm, Notebook, Env, Single)


def detect(variables: Mapping[str, str] = os.environ) -> Launcher:
    """Return the launcher that started this process, from its environment variables; `Single` where none did."""
    return next(launcher(variables) for launcher in LAUNCHERS if launcher.detect(variables))
