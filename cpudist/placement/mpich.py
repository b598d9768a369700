"""MPICH's mpirun (Hydra): ``-bind-to user:`` with each rank's CPUs joined by plus signs."""

from __future__ import annotations

from cpudist.placement.plan import Plan


def arguments(plan: Plan) -> list[str]:
    """What mpirun.mpich is given on one node."""
    count = ["-n", str(len(plan.ranks))]
    if not plan.pinned:
        return [*count, "-bind-to", "none"]
    return [*count, "-bind-to", "user:" + ",".join("+".join(map(str, rank.mask)) for rank in plan.ranks)]
