"""`cpudist run`: train on this machine alone, with as many ranks as its plan has."""

import argparse

from cpudist.cli import launch
from cpudist.cli.parser import Parser, add_target, count, own_values
from cpudist.hosts import run as jobs
from cpudist.launchers import Launcher
from cpudist.launchers.mpis import find_mpirun

HELP = "run a script on this machine, on as many ranks as fit"
DESCRIPTION = """\
Run TARGET on this machine, on as many ranks as `cpudist plan` shows: one for each NUMA node, or the
number that `cpudist plan --measure` has found. A script written for torchrun runs unmodified.
"""

EPILOG = """\
examples:
  a script with its arguments:
    cpudist run train.py --epochs 3
  on two ranks, with options of cpudist-train before the script:
    cpudist run --nproc 2 -- --backend gloo train.py --epochs 3

`cpudist launch` has more options: several hosts, restarts, the output of all ranks.
"""


def add_options(parser: Parser) -> None:
    parser.usage = "cpudist run [OPTIONS] {SCRIPT.py | -- [OPTIONS OF cpudist-train] TARGET} [ARGS...]"
    parser.add_argument(
        "--nproc", dest="ranks", type=count, metavar="N", help="number of ranks (default: those of cpudist plan)"
    )
    add_target(parser)
    parser.unknown_option_hint = (
        "if it is an option of cpudist-train, write it after `--`, as in: cpudist run -- --timeout 60 train.py"
    )


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    """Run the job; exit with its status."""
    job = launch.job_of({**own_values(options), "hosts": None}, launcher)
    raise SystemExit(jobs.run(find_mpirun("auto"), job))
