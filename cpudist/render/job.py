"""What every kind of job has: options as fields of a dataclass, cpudist-train's arguments, variables from the plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from cpudist.launchers.export import export
from cpudist.pinning.options import data_workers
from cpudist.render import values
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine
from cpudist.topology.plan import Plan, PlanOptions, make_plan
from cpudist.topology.thread_variables import THREADS, threads_set
from cpudist.topology.topology import Cpu, assemble

_CHECKPOINT = "--checkpoint-on-signal"


def option(metavar: str, type: values.Type, help: str, default: str | None = None, several: bool = False) -> Any:
    """Declare a field of a `RenderedJob` that is an option of its command.

    Args:
        metavar: what stands for the value in the help.
        type: a type of `values.py`.
        help: of the option; ` (default DEFAULT)` follows where there is a default.
        default: as users would write it.
        several: whether the option can be repeated; the field has the value of each.
    """
    if several:
        return field(metadata={"metavar": metavar, "type": type, "help": help, "action": "append", "default": []})
    help += f" (default {default})" if default else ""
    return field(metadata={"metavar": metavar, "type": type, "help": help, "default": default})


@dataclass(frozen=True, kw_only=True)
class RenderedJob:
    """A job of one kind, with the values of its options.

    Attributes:
        SUMMARY: what is rendered, in one line for the help.
        arguments: of cpudist-train.
    """

    SUMMARY: ClassVar[str]
    arguments: list[str]
    env: Sequence[tuple[str, str]] = option("NAME=VALUE", values.variable, "a variable for all ranks", several=True)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options that this kind declares."""
        for one in fields(cls):
            if one.metadata:
                parser.add_argument(f"--{one.name.replace('_', '-')}", **one.metadata)

    def contradictions(self) -> list[str]:
        """Return one line for each contradiction between values."""
        raise NotImplementedError

    def render(self) -> str:
        """Return the manifest or script."""
        raise NotImplementedError

    @property
    def train(self) -> list[str]:
        """Arguments of cpudist-train, with a checkpoint on SIGTERM."""
        return [*([] if _CHECKPOINT in self.arguments else [_CHECKPOINT]), *self.arguments]

    def planned_variables(self, cpus: int, ranks: int, nodes: int) -> dict[str, tuple[str, str]]:
        """Plan ranks on a node; return the variables that follow from the plan, each with its value and its reason.

        Which CPUs the ranks get is known on the node alone. So the variables pin nothing; ranks pin themselves at
        their start. Variables that the user sets win.

        Args:
            cpus: number of CPUs for these ranks.
            ranks: number of ranks on the node.
            nodes: number of such nodes.
        """
        own = dict(self.env)
        topology = assemble(Cpu(number, core=number) for number in range(cpus))
        threads, variable = threads_set(own) or (None, THREADS)
        options = PlanOptions(ranks, data_workers(self.arguments), threads, variable, nodes * ranks > 1)
        plan = replace(make_plan(Machine(topology, Limits()), options), pinned=False)
        found, why = export(plan, own).variables, _reasons(plan, cpus)
        return {name: (value, why[name]) for name, value in found.items() if not name.startswith("I_MPI_PIN")}


def _reasons(plan: Plan, cpus: int) -> dict[str, str]:
    first = plan.ranks[0]
    reserved = {"to move messages": first.communication_cpus, "to load data": first.data_cpus}
    less = " and ".join(f"{len(numbers)} {what}" for what, numbers in reserved.items() if numbers)
    without = f"; the plan keeps {less}" if less else ""
    return {
        THREADS: f"OpenMP's and torch's threads of each rank: {cpus} CPUs, divided by {len(plan.ranks)}{without}",
        "CCL_WORKER_OFFLOAD": "no CPU can be spared for a worker thread of oneCCL, which would slow the computation",
        "CCL_WORKER_COUNT": "one worker thread of oneCCL, on the CPU that the plan keeps for messages",
    }
