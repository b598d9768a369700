"""Who started this process: one file per launcher, and `detect`, which finds the one that did.

Launchers are read from environment variables alone; how the ranks then meet is `cpudist.rendezvous`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.base import Launcher, Placement
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpich import Mpich
from cpudist.launchers.openmpi import OpenMpi
from cpudist.launchers.pytorchjob import PyTorchJob
from cpudist.launchers.single import Single
from cpudist.launchers.slurm import Slurm
from cpudist.launchers.torchrun import Torchrun

__all__ = ["LAUNCHERS", "Launcher", "Placement", "detect", "launched_rank"]

# Launchers run inside each other and variables are inherited, so the innermost one must be asked first:
# - torchrun runs inside everything: mpirun or srun may start one torchrun per node, a pod may run it.
# - A pod of a PyTorchJob may run mpirun, which then numbers the ranks of that pod only; PyTorchJob combines both.
#   (RANK and WORLD_SIZE that were set by hand give way to the launchers below: see PyTorchJob.detect.)
# - Intel MPI's Hydra sets what MPICH's sets and more.
# - mpirun inside a Slurm allocation starts its helpers with srun: the ranks inherit the variables of that step.
LAUNCHERS: tuple[type[Launcher], ...] = (Torchrun, PyTorchJob, IntelMpi, Mpich, OpenMpi, Slurm, Single)


def detect(env: Mapping[str, str] = os.environ) -> Launcher:
    """Return the launcher that started this process; `Single` when none did."""
    return next(launcher() for launcher in LAUNCHERS if launcher.detect(env))


def launched_rank(env: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank from the launcher's variables alone; None where they make no sense."""
    try:
        return detect(env).placement(env).rank
    except UserError:
        return None
