"""The part of the node that is this rank's: what its launcher has pinned it to, or its part of the plan for the
node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpudist.machine.cpulist import format_list
from cpudist.machine.description import Machine
from cpudist.machine.limits import Limits
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Plan, RankPlan, Wishes


@dataclass(frozen=True)
class Share:
    """What this rank follows.

    Attributes:
        plan: its cores and threads; its `rank` is the local one.
        bind: whether to narrow the rank's mask to the plan.
        hint: one line for the user, or nothing.
    """

    plan: RankPlan
    bind: bool
    hint: str = ""


def own_share(machine: Machine, launcher_cpus: frozenset[int], rank: int, ranks: int, wishes: Wishes) -> Share:
    """The share of local rank `rank` of `ranks`.

    Args:
        machine: this machine, limited to what this process may use.
        launcher_cpus: what the launcher itself may use.
        rank, ranks: of this node.
        wishes: of the user; how many ranks there are is said here.

    Raises:
        UserError: no CPU may be used.
    """
    usable = machine.usable
    everything = machine.topology.restricted_to(launcher_cpus)
    if ranks > 1 and len(usable.cpus) < len(everything.cpus):
        return _fit_in(machine, len(everything.cores), rank, ranks, wishes)
    plan = make_plan(machine, replace(wishes, ranks=ranks))
    return Share(plan.ranks[rank], plan.pinned, _over_subscribed(plan))


def _over_subscribed(plan: Plan) -> str:
    return next((line for line in plan.warnings if line.startswith("over-subscribed")), "")


def _fit_in(machine: Machine, node_cores: int, rank: int, ranks: int, wishes: Wishes) -> Share:
    """Work inside the mask that the launcher has set for this rank."""
    own = len(machine.usable.cores)
    # Ranks whose masks are too large to be disjoint share them: which ones cannot be seen, only how many.
    sharers = ranks * own // node_cores
    plan = make_plan(Machine(machine.topology, _part_of(machine.limits, ranks)), replace(wishes, ranks=1))
    share = replace(plan.ranks[0], rank=rank)
    if sharers > 1:
        threads = wishes.omp_threads or max(min(own // sharers, len(share.cpus)), 1)
        cpus = tuple(sorted(core.cpus[0] for core in machine.usable.cores))
        return Share(RankPlan(rank, cpus, threads, numa_nodes=share.numa_nodes), bind=False)
    hint = _over_subscribed(plan)
    if 2 * own * ranks <= node_cores:
        hint = (
            f"the launcher has pinned each rank to few cores (rank {rank} to the CPUs"
            f" {format_list(machine.usable.cpus)}) and leaves most of {node_cores} idle; tell it not to bind"
            " (Open MPI: --bind-to none), and cpudist divides them"
        )
    return Share(share, plan.pinned, hint)


def _part_of(limits: Limits, ranks: int) -> Limits:
    """The limits of one rank: a quota, and what Slurm has counted, are for all of the node together."""
    quota = None if limits.quota is None else limits.quota / ranks
    counted = None if limits.counted is None else limits.counted // ranks
    return replace(limits, quota=quota, counted=counted)
