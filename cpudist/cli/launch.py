"""`cpudist launch`: starts the ranks of a job on the hosts of a file, watches over them, and leaves nothing behind."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.environments import Environment
from cpudist.errors import UserError
from cpudist.launch.hostfile import read
from cpudist.launch.launchers import MPIS
from cpudist.launch.run import Wishes, run, show
from cpudist.placement.plan import Part

_DESCRIPTION = """\
Start TARGET on many hosts, as `mpirun … cpudist-train TARGET` does, and see it through: every host is checked before
any rank starts, the command line fits the MPI that is there, a lost host ends the job, and when it is over no process
of it is left anywhere. What follows `--` goes to cpudist-train as it is (cpudist-train --help).
"""

_EPILOG = """\
examples:
  two ranks on this host:
    cpudist launch --nproc 2 -- train.py --epochs 3
  two ranks on each host of a file (a host a line: node0, node0:4 or node0 slots=4):
    cpudist launch --hostfile hosts --ppn 2 -- --backend ccl run_qa.py --do_train --output_dir out
  one rank for each socket, with the output of all ranks, each line marked with its rank:
    cpudist launch --hostfile hosts --ppn socket --all-output -- train.py
  see what would be run, to run it by hand:
    cpudist launch --hostfile hosts --ppn 2 --mpi openmpi --dry-run -- train.py
  go on after a failure, up to three times, with no fewer than two hosts; recipes resume from their newest checkpoint:
    cpudist launch --hostfile hosts --ppn 2 --max-restarts 3 --min-nodes 2 -- clm --train_file *.txt --output_dir out
  check the hosts and start nothing:
    cpudist doctor --hostfile hosts

The exit status is the job's: 0, 2 for what the user can mend, 128 and the signal's number after a signal.
Ctrl-C and SIGTERM reach all ranks; a second one does not wait for them.
"""

_PARTS: tuple[Part, ...] = ("socket", "numa", "l3")


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `launch`."""
    parser = commands.add_parser(
        "launch",
        help="start a job on one or many hosts, and see it through",
        usage="cpudist launch [OPTIONS] -- TARGET [ARGS...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="the hosts; without one, this host")
    parser.add_argument(
        "--nproc", type=_count, metavar="N", help="ranks in all (default: as many as there is room for)"
    )
    parser.add_argument(
        "--ppn",
        type=_ranks,
        metavar="{N,socket,numa,l3}",
        help="ranks on a host: a number, or one for each socket, NUMA node or L3 cache "
        "(default: what the hostfile says, otherwise numa)",
    )
    parser.add_argument(
        "--mpi", choices=["auto", *MPIS], default="auto", help="whose mpirun (default: the first that is found)"
    )
    parser.add_argument(
        "--interface", metavar="NAME", help="network interface for all that the job sends, such as eth0"
    )
    parser.add_argument(
        "--max-restarts",
        type=_number,
        default=0,
        metavar="N",
        help="start again after a failure, so often (default 0)",
    )
    parser.add_argument(
        "--min-nodes",
        type=_count,
        metavar="N",
        help="start again on so many hosts at least (default: all of the job's)",
    )
    parser.add_argument(
        "--wait",
        type=_number,
        default=0,
        metavar="SECONDS",
        help="wait so long for hosts that are still starting (default 0)",
    )
    parser.add_argument(
        "--grace",
        type=_count,
        default=60,
        metavar="SECONDS",
        help="with --checkpoint-on-signal: what saving may take after a signal (default 60)",
    )
    parser.add_argument("--all-output", action="store_true", help="show the output of all ranks, not of rank 0 alone")
    parser.add_argument("--dry-run", action="store_true", help="print the command line and run nothing")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- TARGET [ARGS...]", help="for cpudist-train")
    parser.set_defaults(action=_launch, every_rank=False)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _ranks(text: str) -> int | Part:
    for part in _PARTS:
        if text == part:
            return part
    try:
        return _count(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of ranks from 1 on nor socket, numa or l3"
        ) from None


def _launch(options: argparse.Namespace, environment: Environment) -> None:
    if environment.name != "single":
        raise UserError(
            f"this is a rank of {environment.name} already; cpudist launch starts the ranks itself, so run it alone, "
            "or run cpudist-train here"
        )
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not arguments:
        raise UserError("no TARGET; give a script, -m and a module, or a recipe after `--`, as for cpudist-train")
    if options.min_nodes is not None and not options.max_restarts:
        raise UserError("--min-nodes is about restarts; give --max-restarts too, or leave it out")
    wishes = Wishes(
        hosts=read(options.hostfile) if options.hostfile else None,
        arguments=arguments,
        ranks=options.nproc,
        per_host=options.ppn,
        mpi=options.mpi,
        interface=options.interface,
        all_output=options.all_output,
        max_restarts=options.max_restarts,
        min_nodes=options.min_nodes,
        wait=options.wait,
        grace=options.grace,
    )
    if options.dry_run:
        print(show(wishes))
        return
    try:
        status = run(wishes)
    except KeyboardInterrupt:  # while hosts were checked
        status = 128 + signal.SIGINT
    raise SystemExit(status)
