"""`cpudist plan`: this machine, or another one, and where ranks would compute on it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from pathlib import Path

from cpudist.cli.parser import Parser, number_of_processes
from cpudist.environments import Environment
from cpudist.machine.description import machine_from, this_machine
from cpudist.pinning.preload import wanted_allocator
from cpudist.placement.by_hand import ByHand, by_hand
from cpudist.placement.openmp import THREADS, threads_set
from cpudist.placement.picture import draw
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Part, Wishes

_DESCRIPTION = """\
Show which cores each rank of a node computes on, which core moves its messages, and how to do the same by hand.
Ranks that are started with `cpudist-train` follow this plan by themselves.
"""

_EPILOG = """\
examples:
  one rank for each NUMA node of this machine, or two ranks:
    cpudist plan
    cpudist plan --ppn 2
  another machine, from what is run there (`lscpu -p`, or hwloc's `lstopo --of xml` or `hwloc-gather-topology`):
    ssh node1 lscpu -p > node1.txt
    cpudist plan --topology node1.txt --ppn socket
"""

_MOST_RANKS = 10_000  # no node takes so many; beyond that it is a slip, and its plan would take minutes
_PARTS: tuple[Part, ...] = ("socket", "numa", "l3")


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `plan`."""
    parser = commands.add_parser(
        "plan",
        help="show where ranks compute on a machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--ppn",
        type=_ranks,
        default="numa",
        metavar="{N,socket,numa,l3}",
        help="ranks on a node: a number, or one for each socket, NUMA node (default) or L3 cache",
    )
    parser.add_argument(
        "--data-workers",
        type=number_of_processes,
        default=0,
        metavar="N",
        help="processes that load data for each rank (Trainer's --dataloader_num_workers), to be given cores",
    )
    parser.add_argument("--smt", action="store_true", help="compute on every hardware thread of a core, not on one")
    parser.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="another machine: a copy of sysfs, the output of `lscpu -p`, or hwloc's XML",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.set_defaults(action=_plan, every_rank=False)


def _ranks(text: str) -> int | Part:
    for part in _PARTS:
        if text == part:
            return part
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of ranks from 1 to {_MOST_RANKS} nor socket, numa or l3"
        )
    return int(text)


def _plan(options: argparse.Namespace, environment: Environment) -> None:
    if not environment.speaks:
        return
    # The variables of this shell are about this machine; another one is planned as if nothing were set.
    env = {} if options.topology else dict(os.environ)
    machine = machine_from(options.topology) if options.topology else this_machine(env)
    threads, variable = threads_set(env) or (None, THREADS)
    wishes = Wishes(options.ppn, options.data_workers, options.smt, threads, variable)
    plan = make_plan(machine, wishes)
    hand = by_hand(plan, env, None if options.topology else wanted_allocator(env))
    if options.json:
        print(json.dumps(plan.to_json(hand.variables, hand.kept), indent=2))
        return
    print(draw(machine, plan, shutil.get_terminal_size().columns))
    for line in (*plan.warnings, *hand.kept):
        print(f"warning: {line}")
    _print_by_hand(hand)


def _print_by_hand(hand: ByHand) -> None:
    """Not wrapped: these lines are for copying."""
    print("\nBy hand, without cpudist-train (which does this by itself):")
    for name, value in hand.variables.items():
        print(f"  export {name}={shlex.quote(value)}")
    print("  and in train.py: torch.set_num_interop_threads(1)")
    for launcher, command in hand.commands.items():
        print(f"  {launcher + ':':<11}{command}")
    if hand.rankfile:
        print("  Open MPI's file `rankfile` (with the names of your hosts):")
        print("".join(f"    {line}\n" for line in hand.rankfile.splitlines()), end="")
