"""`cpudist`: one command line for all that is not training itself (that is `cpudist-train`).

It knows the commands and how errors reach the user. What a command does stands in its own module, which adds
its parser here and is called with the parsed options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cpudist import environments
from cpudist.cli import bench, build, doctor, launch, plan, render, stacks
from cpudist.cli.parser import Parser, shown_once, with_dashes
from cpudist.console import say
from cpudist.environments import Environment
from cpudist.errors import USER_ERROR, UserError
from cpudist.version import __version__

COMMANDS = (launch, render, stacks, plan, doctor, build, bench)

_EPILOG = """\
`cpudist COMMAND --help` explains a command. Training is started with `cpudist-train`.

examples:
  where ranks would compute on this machine, and what stands in a job's way:
    cpudist plan
    cpudist doctor
  compile the oneCCL backend now rather than when the first job starts:
    cpudist build
  where every rank is of a job on this host that seems to hang:
    cpudist stacks
  how fast are collectives here, on oneCCL and on gloo:
    mpirun -n 2 cpudist bench collectives
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    environment = environments.detect()
    try:
        with shown_once(environment):
            options = _parser().parse_args(with_dashes(words) or ["--help"])
    except UserError as error:
        return _report(error, environment)
    return _run_rank(options, environment) if options.every_rank else _run_alone(options, environment)


def _parser() -> Parser:
    parser = Parser(
        prog="cpudist",
        description="Distributed PyTorch training on the CPU nodes you already have, over MPI and oneCCL.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cpudist {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def _run_alone(options: argparse.Namespace, environment: Environment) -> int:
    try:
        options.action(options, environment)
        sys.stdout.flush()
    except UserError as error:
        return _report(error, environment)
    except BrokenPipeError:  # `cpudist plan | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run_rank(options: argparse.Namespace, environment: Environment) -> int:
    """Run a command that every rank of a job runs: one rank's error ends the job."""
    from cpudist import job  # late: it imports torch

    try:
        options.action(options, environment)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt end the job too
        job.fail(error, rank=environment.rank)
    return 0


def _report(error: UserError, environment: Environment) -> int:
    if environment.speaks:
        for line in str(error).splitlines():  # several where several hosts are to be mended
            say(line)
    return USER_ERROR
