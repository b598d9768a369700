"""oneCCL's worker threads (its developer guide, "Execution of Communication Operations").

cpudist's own backend needs none of this: it moves messages with a thread of its own, which runs on the communication
core.
"""

from __future__ import annotations

from cpudist.placement.plan import Plan


def environment(plan: Plan) -> dict[str, str]:
    """One worker for each rank, on its communication core; none of their own where some rank has no such core."""
    if not all(rank.communication_cpus for rank in plan.ranks):
        return {"CCL_WORKER_OFFLOAD": "0"}
    variables = {"CCL_WORKER_COUNT": "1"}
    if plan.pinned:  # one entry for each worker of the node, in the order of local ranks
        variables["CCL_WORKER_AFFINITY"] = ",".join(str(rank.communication_cpus[0]) for rank in plan.ranks)
    return variables
