"""OpenMP, GNU's and Intel's, and through it torch's threads within an operation.

Both runtimes stay inside the process's affinity mask, and a mask of as many CPUs as threads is all the binding they
need. OMP_PROC_BIND and KMP_AFFINITY are left alone: they bind the main thread to one core as well, which everything
that it starts inherits, so that all processes that load data end up on that one core.
"""

from __future__ import annotations

from cpudist.placement.plan import Plan


def environment(plan: Plan) -> dict[str, str]:
    """One number for all ranks of the node, the smallest, since a launcher hands all of them the same environment."""
    return {"OMP_NUM_THREADS": str(min(rank.omp_threads for rank in plan.ranks))}
