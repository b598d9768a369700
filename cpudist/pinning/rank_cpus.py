"""Find the CPUs of this rank, from its launcher's pinning or from the node's plan, and bind its threads to them."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cpudist.console import say
from cpudist.patching.undo import Changes
from cpudist.pinning.plan import Plan, PlanOptions, RankPlan, make_plan
from cpudist.processes import procfs
from cpudist.topology.kernel_files import format_list
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine


@dataclass(frozen=True)
class Pinning:
    """CPUs and threads assigned to this rank."""

    plan: RankPlan  # its cores and threads; its `rank` is the local one
    bound: bool  # whether to set this process's mask to `plan.cpus`; in the result of `bind`, whether it was set
    hint: str = ""  # a warning for the user; empty if there is none

    def bind(self, changes: Changes) -> Self:
        """Set this process's mask if `bound`; return the new state. Undoing `changes` restores the mask."""
        if self.bound:
            try:
                _bind(self.plan.cpus, changes)
            except OSError as error:  # the cpuset has changed since it was read
                cpus = format_list(self.plan.cpus)
                say(f"warning: local rank {self.plan.rank} cannot be pinned to the CPUs {cpus}: {error.strerror}")
                return replace(self, bound=False)
        return self


@dataclass(frozen=True)
class Starter:
    """The process that started this node's ranks: torchrun's agent, Hydra's proxy, slurmstepd."""

    # Its affinity mask. A rank with a smaller mask was pinned by its launcher; unpinned ranks share this mask.
    cpus: frozenset[int]
    # Its initial environment; None if it cannot be read, for example in another user's process.
    variables: dict[str, str] | None


def starter_of(rank_variable: str | None) -> Starter:
    """Return the nearest ancestor whose `rank_variable`, such as PMI_RANK, differs from this rank's or is not set.

    The parent may be a shell or a wrapper with the same value. Without `rank_variable`, return the parent.
    """
    own = os.environ.get(rank_variable) if rank_variable else None
    pid, variables = os.getppid(), None
    for process in procfs.ancestors():
        pid, variables = process.pid, procfs.environment(process.pid)
        if own is None or variables is None or variables.get(str(rank_variable)) != own:
            break
    try:
        return Starter(frozenset(os.sched_getaffinity(pid)), variables)
    except OSError:  # it has ended, or the kernel refuses: return this process's mask
        return Starter(frozenset(os.sched_getaffinity(0)), variables)


def own_share(machine: Machine, starter_cpus: frozenset[int], rank: int, ranks: int, options: PlanOptions) -> Pinning:
    """Return the pinning of local rank `rank` of `ranks`; the number of ranks in `options` is ignored."""
    usable = machine.usable
    everything = machine.topology.restricted_to(starter_cpus)
    if ranks > 1 and len(usable.cpus) < len(everything.cpus):
        return _inside_own_mask(machine, len(everything.cores), rank, ranks, options)
    plan = make_plan(machine, replace(options, ranks=ranks))
    return Pinning(plan.ranks[rank], plan.pinned, _over_subscribed(plan))


def _over_subscribed(plan: Plan) -> str:
    return next((line for line in plan.warnings if line.startswith("over-subscribed")), "")


def _inside_own_mask(machine: Machine, node_cores: int, rank: int, ranks: int, options: PlanOptions) -> Pinning:
    """Plan inside the mask that the launcher has set for this rank."""
    own = len(machine.usable.cores)
    # If the masks of all ranks have more cores in sum than the node, ranks share masks. Which ranks do so is unknown.
    sharers = ranks * own // node_cores
    plan = make_plan(Machine(machine.topology, _part_of(machine.limits, ranks)), replace(options, ranks=1))
    share = replace(plan.ranks[0], rank=rank)
    if sharers > 1:
        threads = options.omp_threads or max(min(own // sharers, len(share.cpus)), 1)
        cpus = tuple(sorted(core.cpus[0] for core in machine.usable.cores))
        return Pinning(RankPlan(rank, cpus, threads, numa_nodes=share.numa_nodes), bound=False)
    hint = _over_subscribed(plan)
    if 2 * own * ranks <= node_cores:
        where = f"rank {rank} to the CPUs {format_list(machine.usable.cpus)}"
        why = f"the launcher has pinned each rank to few cores ({where}) and leaves most of {node_cores} idle"
        hint = f"{why}; tell it not to bind (Open MPI: --bind-to none), and cpudist divides them"
    return Pinning(share, plan.pinned, hint)


def _part_of(limits: Limits, ranks: int) -> Limits:
    """Return the limits of one rank. A quota and Slurm's number of CPUs apply to the whole node."""
    quota = None if limits.quota is None else limits.quota / ranks
    counted = None if limits.counted is None else limits.counted // ranks
    return replace(limits, quota=quota, counted=counted)


def thread_masks() -> dict[int, frozenset[int]]:
    """Return the CPUs on which each thread of this process may run, by the kernel's thread id."""
    masks = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            masks[int(task.name)] = frozenset(os.sched_getaffinity(int(task.name)))
    return masks


def _bind(cpus: Iterable[int], changes: Changes) -> None:
    """Narrow this process's masks to `cpus`; OSError if the kernel refuses them.

    Existing threads, such as OpenMP's, move, too. A thread whose mask differs from the calling thread's was pinned by
    other code, and is not moved.
    """
    before, own = frozenset(os.sched_getaffinity(0)), frozenset(cpus)

    def move(present: frozenset[int], wanted: frozenset[int]) -> None:
        for thread, mask in thread_masks().items():
            if mask == present != wanted:
                with suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(thread, wanted)

    changes.then(lambda: move(own, before))
    os.sched_setaffinity(0, own)
    for _ in range(2):  # an unmoved thread may start another one during the first pass
        move(before, own)
