"""Slurm's srun: ``--cpu-bind=mask_cpu:`` with a bit mask of CPUs for each task of a node (srun(1))."""

from __future__ import annotations

from cpudist.machine.cpulist import format_mask
from cpudist.placement.plan import Plan


def arguments(plan: Plan) -> list[str]:
    """What srun is given on one node."""
    count = f"--ntasks-per-node={len(plan.ranks)}"
    if not plan.pinned:
        return [count, "--cpu-bind=none"]
    return [count, "--cpu-bind=mask_cpu:" + ",".join(format_mask(rank.mask) for rank in plan.ranks)]
