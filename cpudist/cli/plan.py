"""`cpudist plan`: show where ranks compute on this machine or on another one."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpudist.cli.parser import Parser, count_from_zero, ranks_per_node
from cpudist.launchers import Launcher
from cpudist.launchers.export import ExportedPlan, export
from cpudist.pinning.preload import wanted_allocator
from cpudist.topology.machine import machine_from, this_machine
from cpudist.topology.picture import draw
from cpudist.topology.pinning_plan import Plan, PlanOptions, make_plan
from cpudist.topology.thread_variables import THREADS, threads_set

HELP = "show where ranks compute on a machine"
DESCRIPTION = """\
Show on which cores each rank of a node computes, which core moves its messages, and how to do the same by hand.
Ranks that `cpudist-train` starts follow this plan without further options.
"""

EPILOG = """\
examples:
  one rank for each NUMA node of this machine, or two ranks:
    cpudist plan
    cpudist plan --ppn 2
  another machine, from the output of `lscpu -p`, `lstopo --of xml` or `hwloc-gather-topology` there:
    ssh node1 lscpu -p > node1.txt
    cpudist plan --topology node1.txt --ppn socket
"""


def add_options(parser: Parser) -> None:
    """Add the options of `cpudist plan`."""
    parser.add_argument(
        "--ppn",
        type=ranks_per_node,
        default="numa",
        metavar="{N,socket,numa,l3}",
        help="ranks on a node: a number, or one for each socket, NUMA node (default) or L3 cache",
    )
    parser.add_argument(
        "--data-workers",
        type=count_from_zero,
        default=0,
        metavar="N",
        help="processes that load data for each rank (Trainer's --dataloader_num_workers), to be given cores",
    )
    parser.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="another machine: a copy of sysfs, the output of `lscpu -p`, or hwloc's XML",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Print the plan as a picture or as JSON."""
    # The variables of this shell are for this machine; for another one no variable is set.
    env = {} if options.topology else dict(os.environ)
    machine = machine_from(options.topology) if options.topology else this_machine(env)
    threads, variable = threads_set(env) or (None, THREADS)
    plan = make_plan(machine, PlanOptions(options.ppn, options.data_workers, threads, variable))
    exported = export(plan, env, None if options.topology else wanted_allocator(env))
    if options.json:
        print(json.dumps(_as_json(plan, exported), indent=2))
        return
    print(draw(machine, plan, shutil.get_terminal_size().columns))
    for line in (*plan.warnings, *exported.kept):
        print(f"warning: {line}")
    _print_export(exported)


def _as_json(plan: Plan, exported: ExportedPlan) -> dict[str, Any]:
    return {
        "ranks": [asdict(rank) for rank in plan.ranks],
        "idle_cpus": list(plan.idle_cpus),
        "pinned": plan.pinned,
        "environment": exported.variables,
        "warnings": [*plan.warnings, *exported.kept],
    }


def _print_export(exported: ExportedPlan) -> None:
    """Print the lines that set up the plan; they can be copied, so they are not wrapped."""
    print("\nBy hand, without cpudist-train (which does this by itself):")
    for name, value in exported.variables.items():
        print(f"  export {name}={shlex.quote(value)}")
    for launcher, command in exported.commands.items():
        print(f"  {launcher + ':':<11}{command}")
    if exported.rankfile:
        print("  Open MPI's file `rankfile` (with the names of your hosts):")
        print("".join(f"    {line}\n" for line in exported.rankfile.splitlines()), end="")
