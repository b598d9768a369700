"""Intel MPI's mpirun: one domain, a bit mask of CPUs, for each rank of a node.

Developer Reference, "Interoperability with OpenMP API": I_MPI_PIN_DOMAIN=[m_1,...,m_n], bits by the system's CPU
numbers.
"""

from __future__ import annotations

from cpudist.machine.cpulist import format_mask
from cpudist.placement.plan import Plan


def environment(plan: Plan) -> dict[str, str]:
    """The ranks' domains; unpinned ranks are told to be left alone."""
    if not plan.pinned:
        return {"I_MPI_PIN": "off"}
    return {"I_MPI_PIN_DOMAIN": "[" + ",".join(format_mask(rank.mask) for rank in plan.ranks) + "]"}


def arguments(plan: Plan) -> list[str]:
    """What mpirun is given on one node."""
    return ["-n", str(len(plan.ranks))]
