"""What ranks are told, whatever starts them: cpudist-train's words, and variables from the placement plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cpudist.machine.description import Machine
from cpudist.machine.limits import Limits
from cpudist.machine.topology import Cpu, assemble
from cpudist.pinning.wishes import data_workers
from cpudist.placement.by_hand import by_hand
from cpudist.placement.openmp import THREADS, threads_set
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Plan, Wishes

_CHECKPOINT = "--checkpoint-on-signal"


def train(arguments: Sequence[str]) -> list[str]:
    """The words after `cpudist-train`."""
    return [*([] if _CHECKPOINT in arguments else [_CHECKPOINT]), *arguments]


def planned(
    cpus: int, ranks: int, own: Mapping[str, str], arguments: Sequence[str], several: bool
) -> tuple[Plan, dict[str, str]]:
    """The plan for `ranks` on `cpus` CPUs, and the variables that follow from it.

    The CPUs have no numbers yet: which ones they are, the node decides. So ranks pin themselves, when they start.

    Args:
        own: what the user sets, which stays.
        arguments: of cpudist-train.
        several: whether the job has other ranks too.
    """
    topology = assemble(Cpu(number, core=number) for number in range(cpus))
    threads, variable = threads_set(own) or (None, THREADS)
    wishes = Wishes(ranks, data_workers(arguments), False, threads, variable, several)
    plan = replace(make_plan(Machine(topology, Limits()), wishes), pinned=False)
    found = by_hand(plan, own).variables
    return plan, {name: value for name, value in found.items() if not name.startswith("I_MPI_PIN")}


def reasons(plan: Plan, cpus: int) -> dict[str, str]:
    """Why each variable has its value, for people."""
    first = plan.ranks[0]
    kept = {"to move messages": first.communication_cpus, "to load data": first.data_cpus}
    less = " and ".join(f"{len(numbers)} {what}" for what, numbers in kept.items() if numbers)
    without = f"; the plan keeps {less}" if less else ""
    return {
        THREADS: f"OpenMP's and torch's threads of each rank: {cpus} CPUs, divided by {len(plan.ranks)}{without}",
        "CCL_WORKER_OFFLOAD": "no CPU can be spared for a worker thread of oneCCL, which would slow the computation",
        "CCL_WORKER_COUNT": "one worker thread of oneCCL, on the CPU that the plan keeps for messages",
        "LD_PRELOAD": "tcmalloc keeps freed memory, so a step takes about a fifth less time; the image has it",
    }
