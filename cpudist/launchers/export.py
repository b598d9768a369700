"""Write a plan as environment variables and command lines, for jobs that run without cpudist.

Variables that are set already stay; the result names the differences from the plan.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cpudist.launchers.intel_mpi import PINNING_VARIABLES
from cpudist.launchers.mpis import MPIS
from cpudist.launchers.openmpi import OpenMpi
from cpudist.launchers.slurm import Slurm
from cpudist.topology import thread_variables
from cpudist.topology.pinning_plan import Plan

_TRAIN = ("python", "train.py")


@dataclass(frozen=True)
class ExportedPlan:
    """A plan for jobs that run without cpudist.

    Attributes:
        variables: the environment variables to set.
        kept: a line for each variable that is set already and stays.
        commands: for each launcher its command line.
        rankfile: the text of the file that Open MPI's command line names; empty for ranks that are not pinned.
    """

    variables: dict[str, str]
    kept: tuple[str, ...]
    commands: dict[str, str]
    rankfile: str


def export(plan: Plan, env: Mapping[str, str], preload: Path | None = None) -> ExportedPlan:
    """Return the plan of a node for jobs that run without cpudist and have the variables `env` set."""
    wanted = thread_variables.environment(plan)
    for mpi in MPIS:
        wanted |= mpi.pinning_variables(plan)
    if preload is not None:
        wanted["LD_PRELOAD"] = str(preload)
    if thread_variables.threads_set(env) is not None:
        del wanted[thread_variables.THREADS]  # the plan has the user's number already
    decided = [name for name in (*PINNING_VARIABLES, *thread_variables.BINDING) if name in env and name not in wanted]
    kept = [f"{name}={env[name]} is set and stays" for name in decided]
    variables = {}
    for name, value in wanted.items():
        if name in env and name != thread_variables.THREADS:
            if env[name] != value:
                kept.append(f"{name}={env[name]} is set and stays; the plan has {value}")
        elif not (name in PINNING_VARIABLES and any(name in env for name in PINNING_VARIABLES)):
            variables[name] = value
    commands = {mpi.title: shlex.join(["mpirun", *mpi.pinning_arguments(plan), *_TRAIN]) for mpi in MPIS}
    commands["Slurm"] = shlex.join(["srun", *Slurm.pinning_arguments(plan), *_TRAIN])
    rankfile = OpenMpi.rankfile(plan, "localhost") if plan.pinned else ""
    return ExportedPlan(variables, tuple(kept), commands, rankfile)
