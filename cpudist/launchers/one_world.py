"""Make the variables of all launchers name the same rank.

A rank inherits the variables of launchers around its own: every rank of an mpirun in a batch script has SLURM_PROCID=0,
which sbatch has set. Lightning and other libraries prefer such variables to MPI's.
"""

from collections.abc import Mapping
from dataclasses import astuple

from cpudist.launchers.launcher import Placement
from cpudist.launchers.pytorch import Torchrun

# The variables that libraries read for the fields of `Placement`, in order. Torch's are always set. Another row is set
# as a whole if a rank has one of its variables, because libraries read them together. Variables by which MPI connects
# ranks (PMI_FD, PMIX_RANK) are left out.
_TORCH = (Torchrun.placement_variables, ("", "", "", "", "NODE_RANK", ""))
_OTHERS = (
    ("PMI_RANK", "PMI_SIZE", "", "", "", ""),
    ("", "", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", ""),  # Hydra's
    *(
        (f"{start}_RANK", f"{start}_SIZE", f"{start}_LOCAL_RANK", f"{start}_LOCAL_SIZE", "", "")
        for start in ("OMPI_COMM_WORLD", "MV2_COMM_WORLD", "JSM_NAMESPACE")  # Open MPI, MVAPICH, LSF's jsrun
    ),
    ("PALS_RANKID", "", "", "", "PALS_NODEID", ""),  # Slurm and Flux set these two as well
    ("", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "", ""),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID", ""),
    ("", "SLURM_NPROCS", "", "", "", ""),
    ("", "SLURM_STEP_NUM_TASKS", "", "", "", ""),
)
_OF_EVERY_NODE = "SLURM_NTASKS_PER_NODE"  # has no value where nodes have different numbers of ranks

NAMES = [name for row in (*_TORCH, *_OTHERS) for name in row if name]


def describing(place: Placement, found: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that describe the rank at `place` to every library that may read one of `found`.

    Value None: the variable must not be set. In a job of one rank the other launchers' variables stay as they are,
    because the job's script may start the ranks of a Slurm allocation.
    """
    others = _OTHERS if place.size > 1 else ()
    rows = [*_TORCH, *(row for row in others if found.keys() & set(row))]
    values = list(map(str, astuple(place)))
    variables: dict[str, str | None] = {n: value for row in rows for n, value in zip(row, values, strict=True) if n}
    if _OF_EVERY_NODE in variables and place.size != (place.local_size or 0) * (place.node_count or 0):
        variables[_OF_EVERY_NODE] = None
    return variables


def corrected(place: Placement, found: Mapping[str, str]) -> list[str]:
    """Return the names of the variables in `found` that describe another rank than the one at `place`."""
    return [name for name, value in describing(place, found).items() if name in found and found[name] != value]
