"""The command `cpudist`, for everything except training (`cpudist-train`).

This module lists the commands and shows their errors. Each command has its own module, which adds its options to a
parser; its `run` is called with the parsed options.
"""

import difflib
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from cpudist import launchers
from cpudist.cli import bench, build, docs, doctor, forecast, launch, plan, run, stacks, summary, test, top
from cpudist.cli.parser import Parser, parse, shown_once
from cpudist.console import say
from cpudist.errors import USER_ERROR, UserError
from cpudist.version import __version__

# Each module has HELP, DESCRIPTION, `add_options`, `run`, maybe EPILOG. A command runs on rank 0 alone, unless its
# parser sets `every_rank`.
_MODULES = (run, launch, test, top, stacks, summary, forecast, plan, doctor, build, bench, docs)
COMMANDS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}

_EPILOG = """\
`cpudist COMMAND --help` explains a command. Under mpirun, srun or torchrun, training is started with `cpudist-train`.

examples:
  train on this machine, on as many ranks as fit:
    cpudist run train.py --epochs 3
  where ranks would compute on this machine, and what stands in a job's way:
    cpudist plan
    cpudist doctor
  how fast every rank trains and which one makes the others wait, and where each is in a job that seems to hang:
    cpudist top
    cpudist stacks
  a page of the documentation, and where it speaks of something:
    cpudist docs troubleshooting
    cpudist docs "CPU quota"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    launcher = launchers.detect()
    try:
        with shown_once(launcher):
            _check_command(words)
            options = parse(_parser(), words or ["--help"])
        if launcher.is_main_process or options.every_rank:
            options.run(options, launcher)
            sys.stdout.flush()
    except UserError as error:
        for line in str(error).splitlines() if launcher.is_main_process else ():  # some errors have a line per host
            say(line)
        return USER_ERROR
    except BrokenPipeError:  # the reader has closed the pipe, as in `cpudist plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _check_command(words: Sequence[str]) -> None:
    """Raise a `UserError` if the first word is no command; the error suggests the command with the nearest name."""
    word = words[0] if words else "--help"
    if word.startswith("-") or word in COMMANDS:
        return
    if word.endswith(".py"):
        raise UserError(f"{word} is no command; to run it on this machine: cpudist run {shlex.join(words)}")
    near = difflib.get_close_matches(word, COMMANDS, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"there is no command {word}; {guess}see cpudist --help")


def _parser() -> Parser:
    parser = Parser(
        prog="cpudist",
        description="Distributed PyTorch training on the CPU nodes you already have, over MPI and oneCCL.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"cpudist {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        epilog = getattr(command, "EPILOG", None)
        one = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION, epilog=epilog)
        one.set_defaults(run=command.run, every_rank=False)
        command.add_options(one)
    return parser
