"""Open MPI's mpirun: a rankfile (mpirun(1), "Rankfiles").

Open MPI 4 counts hardware threads anew unless told that the numbers are the system's; Open MPI 5 takes them as they
are.
"""

from __future__ import annotations

from cpudist.machine.cpulist import format_list
from cpudist.placement.plan import Plan


def rankfile(plan: Plan, host: str) -> str:
    """The text of the file for the ranks of one host."""
    return "".join(f"rank {rank.rank}={host} slot={format_list(rank.mask)}\n" for rank in plan.ranks)


def arguments(plan: Plan, file: str) -> list[str]:
    """What mpirun.openmpi is given on one node, where the rankfile lies in `file`."""
    count = ["-n", str(len(plan.ranks))]
    if not plan.pinned:
        return [*count, "--bind-to", "none"]
    return [*count, "--use-hwthread-cpus", "--mca", "rmaps_rank_file_physical", "1", "--rankfile", file]
