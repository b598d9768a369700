"""A plan as somebody without cpudist would follow it: environment variables and command lines.

Whatever is set already stays; a variable that says something else than the plan is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cpudist.placement import intel_mpi, mpich, oneccl, openmp, openmpi, slurm
from cpudist.placement.plan import Plan

# Each of these decides pinning under Intel MPI by itself, so the plan's own variable would not be read, or would win
# against what the user meant.
_INTEL_PINNING = ("I_MPI_PIN", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST", "I_MPI_PIN_CELL", "I_MPI_PIN_ORDER")


@dataclass(frozen=True)
class ByHand:
    """Variables to set, what is set already and stays (one line each), command lines by launcher, and the file that
    Open MPI's refers to."""

    variables: dict[str, str]
    kept: tuple[str, ...]
    commands: dict[str, str]
    rankfile: str


def by_hand(plan: Plan, env: Mapping[str, str], preload: Path | None = None) -> ByHand:
    """How to follow the plan without cpudist, given the variables that are set and a library to preload, if any."""
    wanted = openmp.environment(plan) | intel_mpi.environment(plan) | oneccl.environment(plan)
    if preload is not None:
        wanted["LD_PRELOAD"] = str(preload)
    if openmp.threads_set(env) is not None:
        del wanted[openmp.THREADS]  # make_plan has taken it into account and has said so
    decided = [name for name in (*_INTEL_PINNING, *openmp.BINDING) if name in env and name not in wanted]
    kept = [f"{name}={env[name]} is set and stays" for name in decided]
    variables = {}
    for name, value in wanted.items():
        if name in env and name != openmp.THREADS:
            if env[name] != value:
                kept.append(f"{name}={env[name]} is set and stays; the plan has {value}")
        elif not (name.startswith("I_MPI_PIN") and any(name in env for name in _INTEL_PINNING)):
            variables[name] = value
    return ByHand(variables, tuple(kept), _commands(plan), openmpi.rankfile(plan, "localhost") if plan.pinned else "")


def _commands(plan: Plan) -> dict[str, str]:
    train = ["python", "train.py"]
    commands = {
        "Intel MPI": ["mpirun", *intel_mpi.arguments(plan), *train],
        "MPICH": ["mpirun", *mpich.arguments(plan), *train],
        "Open MPI": ["mpirun", *openmpi.arguments(plan, "rankfile"), *train],
        "Slurm": ["srun", *slurm.arguments(plan), *train],
    }
    return {launcher: shlex.join(words) for launcher, words in commands.items()}
