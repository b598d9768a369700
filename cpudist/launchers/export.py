"""Write a plan as environment variables, for jobs that run without cpudist. Those that are set already stay.

GNU's and Intel's OpenMP stay inside the process's affinity mask; a mask of as many CPUs as threads binds them well
enough. OMP_PROC_BIND and KMP_AFFINITY are left alone: they bind the main thread to one core, and every process that it
starts, such as a data worker, inherits that core.

oneCCL's worker threads ("Execution of Communication Operations" in its developer guide) matter only to jobs without
cpudist's backend. They poll, and all cores compute, so they are turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cpudist.launchers.intel_mpi import PINNING_VARIABLES, pinning_variables
from cpudist.topology.pinning_plan import BINDING, THREADS, Plan, threads_set


def export(plan: Plan, env: Mapping[str, str], preload: Path | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a node's plan for jobs without cpudist, and a line for each that `env` sets otherwise."""
    wanted = _thread_variables(plan) | pinning_variables(plan)
    if preload is not None:
        wanted["LD_PRELOAD"] = str(preload)
    set_by_user = {name for name in {*wanted, *PINNING_VARIABLES, *BINDING} - {THREADS} if name in env}
    kept = [f"{name}={env[name]} is set and stays" for name in sorted(set_by_user) if env[name] != wanted.get(name)]
    if set_by_user & {*PINNING_VARIABLES}:  # each of them alone decides
        set_by_user |= {*PINNING_VARIABLES}
    if threads_set(env) is not None:  # the plan has the user's number already
        set_by_user.add(THREADS)
    return {name: value for name, value in wanted.items() if name not in set_by_user}, kept


def _thread_variables(plan: Plan) -> dict[str, str]:
    """Return the variables by which OpenMP and oneCCL follow a plan.

    A launcher gives all ranks of a node the same environment, so OpenMP's number is that of the smallest rank.
    """
    return {THREADS: str(min(rank.omp_threads for rank in plan.ranks)), "CCL_WORKER_OFFLOAD": "0"}
