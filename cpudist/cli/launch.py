"""`cpudist launch`: start a job on the hosts of a file, restart it after a failure, and leave no process behind."""

import argparse
from typing import Any

from cpudist.cli.parser import NO_TARGET, Parser, add_ranks_per_node, add_target, count, count_from_zero, own_values
from cpudist.cli.train import read_words
from cpudist.errors import UserError
from cpudist.hosts import run as jobs
from cpudist.hosts.host_plan import LaunchOptions
from cpudist.hosts.hostfile import read
from cpudist.launchers import Launcher
from cpudist.launchers.mpis import MPI_BY_OPTION, find_mpirun

HELP = "start a job on one or many hosts"
DESCRIPTION = """\
Start TARGET on one or many hosts, as `mpirun … cpudist-train TARGET` does. It checks every host
before any rank starts, uses the MPI that is installed, ends the job when a host is lost, and
leaves no process behind. The options of cpudist-train go after `--` (cpudist-train --help).
"""

EPILOG = """\
examples:
  two ranks on this host:
    cpudist launch --nproc 2 -- train.py --epochs 3
  two ranks on each host of a file (a host a line: node0, node0:4 or node0 slots=4):
    cpudist launch --hostfile hosts --ppn 2 -- --backend ccl run_qa.py --do_train --output_dir out
  one rank for each socket, with the output of all ranks, each line marked with its rank:
    cpudist launch --hostfile hosts --ppn socket --all-output -- train.py
  restart after a failure, up to three times, on two hosts or more; trainings go on from the newest checkpoint:
    cpudist launch --hostfile hosts --ppn 2 --max-restarts 3 --min-nodes 2 -- train.py --epochs 10
  check the hosts and start nothing:
    cpudist doctor --hostfile hosts

The exit status is the job's: 0, or 2 for an error that the user can correct, or 128 plus the number of a signal.
Ctrl-C and SIGTERM are sent to all ranks; a second one kills them.
"""


def add_options(parser: Parser) -> None:
    parser.usage = "cpudist launch [OPTIONS] -- TARGET [ARGS...]"
    parser.add_argument("--hostfile", dest="hosts", type=read, metavar="FILE", help="the hosts; without one, this host")
    ranks = "number of all ranks (default: as many as the hosts take)"
    parser.add_argument("--nproc", dest="ranks", type=count, metavar="N", help=ranks)
    add_ranks_per_node(parser, "per_host", "what the hostfile says, otherwise what cpudist plan --measure has found")
    mpis, which = ["auto", *MPI_BY_OPTION], "which MPI's mpirun (default: the first one found)"
    parser.add_argument("--mpi", choices=mpis, default="auto", help=which)
    parser.add_argument("--interface", metavar="NAME", help="network interface for all traffic, such as eth0")
    add_common_options(parser)
    fewest = "restart on no fewer hosts (default: all hosts of the job)"
    parser.add_argument("--min-nodes", type=count, metavar="N", help=fewest)
    wait = "how long to wait for hosts that are still starting (default 0)"
    parser.add_argument("--wait", type=count_from_zero, default=0, metavar="SECONDS", help=wait)
    grace = "with --checkpoint-on-signal: time for saving after a signal (default 60)"
    parser.add_argument("--grace", type=count, default=60, metavar="SECONDS", help=grace)
    parser.add_argument("--dry-run", action="store_true", help="print the command line and run nothing")
    add_target(parser)
    hint = "if it is an option of cpudist-train, write it after `--`, as in: cpudist launch -- --timeout 60 train.py"
    parser.unknown_option_hint = hint


def add_common_options(parser: Parser) -> None:
    """Add the options that `cpudist launch` and `cpudist run` share."""
    often = "how many restarts are allowed after failures within a day (default 0)"
    parser.add_argument("--max-restarts", type=count_from_zero, default=0, metavar="N", help=often)
    parser.add_argument("--all-output", action="store_true", help="show the output of all ranks, not of rank 0 alone")


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    """Run the job, or print its command line; exit with the job's status."""
    values = own_values(options)
    mpi, dry_run = values.pop("mpi"), values.pop("dry_run")
    job = job_of(values, launcher)
    if job.min_nodes is not None and not job.max_restarts:
        raise UserError("--min-nodes applies to restarts; give --max-restarts too, or leave it out")
    mpirun = find_mpirun(mpi)
    if dry_run:
        print(jobs.show(mpirun, job))
        return
    raise SystemExit(jobs.run_job(mpirun, job))


def job_of(values: dict[str, Any], launcher: Launcher) -> LaunchOptions:
    """Return the job that a command's options describe; `UserError` without TARGET, or if this process is a rank."""
    if launcher.name != "single":
        why = f"this process is a rank of {launcher.name} already, and cpudist starts the ranks itself"
        raise UserError(f"{why}; run this command alone, or run cpudist-train here")
    if not values["arguments"]:
        raise UserError(NO_TARGET)
    script, saves = read_words(values["arguments"])
    return LaunchOptions(**values, script=script, saves=saves)
