"""Which launcher started this process: one file per launcher, and `detect`, which finds the one that did.

Each is read from environment variables alone, and answers for itself what others want to know of it. Nothing here
starts anything. It must not know torch, MPI or jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cpudist.environments.base import Alone, AtAddress, Environment, InStore, OverMpi, Placement, Rendezvous
from cpudist.environments.intel_mpi import IntelMpi
from cpudist.environments.mpich import Mpich
from cpudist.environments.notebook import Notebook
from cpudist.environments.openmpi import OpenMpi
from cpudist.environments.pytorchjob import PyTorchJob
from cpudist.environments.single import Single
from cpudist.environments.slurm import Slurm
from cpudist.environments.torchrun import Torchrun
from cpudist.environments.variables import Variables

__all__ = [
    "ENVIRONMENTS",
    "Alone",
    "AtAddress",
    "Environment",
    "InStore",
    "OverMpi",
    "Placement",
    "Rendezvous",
    "detect",
]

# Launchers run inside each other and variables are inherited, so the innermost one must be asked first:
# - torchrun runs inside everything: mpirun or srun may start one torchrun per node, a pod may run it.
# - A pod of a PyTorchJob may run mpirun, which then numbers the ranks of that pod only; PyTorchJob combines both.
# - Intel MPI's Hydra sets what MPICH's sets and more.
# - mpirun inside a Slurm allocation starts its helpers with srun: the ranks inherit the variables of that step.
# - A notebook's ranks carry no other launcher's variables: who has them runs inside a rank.
# - RANK and WORLD_SIZE that a script has set by hand, under mpirun or srun, say no more than those know.
ENVIRONMENTS: tuple[type[Environment], ...] = (
    Torchrun,
    PyTorchJob,
    IntelMpi,
    Mpich,
    OpenMpi,
    Slurm,
    Notebook,
    Variables,
    Single,
)


def detect(variables: Mapping[str, str] = os.environ) -> Environment:
    """Return what started this process, going by its environment variables; `Single` when nothing did."""
    return next(environment(variables) for environment in ENVIRONMENTS if environment.detect(variables))
