"""Environment variables that set the threads of OpenMP, and through it of torch, and of oneCCL.

GNU's and Intel's OpenMP stay inside the process's affinity mask; a mask of as many CPUs as threads binds them well
enough. OMP_PROC_BIND and KMP_AFFINITY are left alone: they bind the main thread to one core, and every process that it
starts, such as a data worker, inherits that core.

oneCCL's worker threads ("Execution of Communication Operations" in its developer guide) matter only to jobs without
cpudist's backend: its communication thread needs no variable.
"""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.topology.pinning_plan import Plan

THREADS = "OMP_NUM_THREADS"
# A torch that is built with MKL takes the number of threads from MKL, and MKL reads its own variable first.
_VARIABLES = ("MKL_NUM_THREADS", THREADS)
# Each of these decides on which CPU each thread runs.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def environment(plan: Plan) -> dict[str, str]:
    """Return the variables by which OpenMP and oneCCL follow a plan.

    A launcher gives all ranks of a node the same environment, so OpenMP's number is that of the smallest rank.
    """
    return {THREADS: str(min(rank.omp_threads for rank in plan.ranks)), **_oneccl(plan)}


def _oneccl(plan: Plan) -> dict[str, str]:
    """Set one worker for each rank, on its communication core; no worker where a rank has no such core."""
    if not all(rank.communication_cpus for rank in plan.ranks):
        return {"CCL_WORKER_OFFLOAD": "0"}
    variables = {"CCL_WORKER_COUNT": "1"}
    if plan.pinned:  # one entry for each worker of the node, in the order of local ranks
        variables["CCL_WORKER_AFFINITY"] = ",".join(str(rank.communication_cpus[0]) for rank in plan.ranks)
    return variables


def threads_set(variables: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the number of threads that the user has set, and the name of its variable.

    A value that is not a positive number is ignored.
    """
    for name in _VARIABLES:
        text = variables.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            return int(text), name
    return None
