"""`cpudist plan`: show where ranks compute on this machine or on another one."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from cpudist.bench import rank_counts
from cpudist.bench.cluster_figures import proposed_shares
from cpudist.cli.parser import Parser, add_ranks_per_node
from cpudist.console import number_of, size
from cpudist.errors import UserError
from cpudist.hosts.hostfile import read, shares
from cpudist.launchers import Launcher
from cpudist.launchers.mpi_launcher import Host
from cpudist.observability import product_speed
from cpudist.pinning import measured_ranks
from cpudist.pinning.picture import draw
from cpudist.pinning.plan import THREADS, PlanOptions, make_plan, threads_set
from cpudist.topology.exports import machine_from
from cpudist.topology.machine import this_machine

HELP = "show where ranks compute on a machine"
DESCRIPTION = """\
Show on which cores each rank of a node computes. Ranks that `cpudist-train` starts follow this plan without further
options.

With --measure, find the number of ranks with which this machine trains fastest: 1, 2, 4, ... ranks make some steps in
turn, of a model of the benchmarks or of your script, until more ranks are slower. It takes at most two minutes, or with
your script about half a minute for each number. `cpudist launch` and `cpudist plan` then start as many where no number
is given.
"""

EPILOG = """\
examples:
  one rank for each NUMA node of this machine, or two ranks:
    cpudist plan
    cpudist plan --ppn 2
  another machine, from the output of `lscpu -p` or `lstopo --of xml` there:
    ssh node1 lscpu -p > node1.txt
    cpudist plan --topology node1.txt --ppn socket
  how many ranks train fastest here, a model of the benchmarks or your own script:
    cpudist plan --measure
    cpudist plan --measure -- train.py --batch_size 8
    cpudist plan --measure -- -m package.training --batch_size 8
"""


def add_options(parser: Parser) -> None:
    add_ranks_per_node(parser, "ppn", "the number that --measure has found on such a machine")
    another = "another machine: a copy of sysfs, the output of `lscpu -p`, or hwloc's XML"
    parser.add_argument("--topology", type=Path, metavar="FILE", help=another)
    parser.add_argument("--hostfile", type=read, metavar="FILE", help="show or propose its hosts' shares, too")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--measure", action="store_true", help="find the fastest number of ranks first")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- TARGET [ARGS...]", help="for --measure")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    script = options.arguments[options.arguments[:1] == ["--"] :]
    if options.measure and options.topology:
        raise UserError("--measure needs the machine itself; run it there, without --topology")
    if script and not options.measure:
        raise UserError(f"{script[0]} is for --measure; add that, or leave it out")
    if options.measure:
        _measure(script, to=sys.stderr if options.json else sys.stdout)
    env = {} if options.topology else dict(os.environ)  # This shell's variables apply to this machine only.
    machine = machine_from(options.topology) if options.topology else this_machine(env)
    threads, variable = threads_set(env) or (None, THREADS)
    measured = None if options.topology else measured_ranks.load()
    plan = make_plan(machine, PlanOptions(options.ppn or measured or "numa", threads, variable))
    if options.json:
        ranks = [{**asdict(rank), "communication_cpus": []} for rank in plan.ranks]
        fields = {"ranks": ranks, "idle_cpus": list(plan.idle_cpus), "pinned": plan.pinned}
        environment = {THREADS: str(min(rank.omp_threads for rank in plan.ranks))}  # the same for all ranks of a node
        print(json.dumps({**fields, "environment": environment, "warnings": plan.warnings}, indent=2))
        return
    print(draw(machine, plan, shutil.get_terminal_size().columns))
    if measured and not options.ppn:
        print(f"{number_of(measured, 'rank')}: the fastest on this machine by cpudist plan --measure")
    for line in plan.warnings:
        print(f"warning: {line}")
    if options.hostfile:
        print(_shares(options.hostfile))


def _shares(hosts: Sequence[Host]) -> str:
    """Return a line with each host's part of a step's samples: the hostfile's, proposed by speeds, or by ranks."""
    parts = shares(hosts)
    if not parts and (proposed := proposed_shares(product_speed.of_hosts(host.name for host in hosts))):
        return f"for this hostfile with --balance, by the speeds that cpudist test has measured: {proposed}"
    ranks = [host.slots or 1 for host in hosts]
    parts = parts or [number / sum(ranks) for number in ranks]
    each = [f"{host.name} {part:.2f}" for host, part in zip(hosts, parts, strict=True)]
    return f"with --balance, the first shares of a step's samples: {', '.join(each)}"


def _measure(script: Sequence[str], to: TextIO) -> None:
    """Print a line for each number of ranks, and store the fastest."""
    print("ranks  threads  batches/s  memory/rank", file=to, flush=True)
    found = []
    for one in rank_counts.measure(len(this_machine().usable.cores), script):
        found.append(one)
        print(f"{one.ranks:5}  {one.threads:7}  {one.batches:9.3g}  {size(one.memory):>11}", file=to, flush=True)
    best = max(found, key=lambda one: one.batches).ranks
    file = measured_ranks.save(best)
    print(f"fastest: {number_of(best, 'rank')} (mpirun -ppn {best}); kept in {file}\n", file=to)
