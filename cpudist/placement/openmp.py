"""OpenMP, GNU's and Intel's, and through it torch's threads within an operation.

Both runtimes stay inside the process's affinity mask, and a mask of as many CPUs as threads is all the binding they
need. OMP_PROC_BIND and KMP_AFFINITY are left alone: they bind the main thread to one core as well, which everything
that it starts inherits, so that all processes that load data end up on that one core.
"""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.placement.plan import Plan

THREADS = "OMP_NUM_THREADS"
# torch asks MKL, where it is built with it, how many threads there shall be, and MKL's own variable comes first there.
_VARIABLES = ("MKL_NUM_THREADS", THREADS)
# Whoever sets one of these has decided where each thread runs.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def environment(plan: Plan) -> dict[str, str]:
    """One number for all ranks of the node, the smallest, since a launcher hands all of them the same environment."""
    return {THREADS: str(min(rank.omp_threads for rank in plan.ranks))}


def threads_set(variables: Mapping[str, str]) -> tuple[int, str] | None:
    """The number of threads that the variables ask for, and which of them does; what is no number asks for nothing."""
    for name in _VARIABLES:
        text = variables.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            return int(text), name
    return None
