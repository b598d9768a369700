"""The command `cpudist build`, which compiles the package's C++ before a job needs it."""

import argparse
import time
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "compile the oneCCL backend and the training operators ahead of time"
DESCRIPTION = """\
Compile the oneCCL backend, and the operators of `cpudist.optimize` (attention, dropout), ahead of time. Otherwise the
first job compiles them, which takes a C++ compiler and 45 to 90 seconds of a core. The backend works with the versions
of torch, Python and oneCCL that it was compiled with.
"""

EPILOG = """\
examples:
  into this user's cache:
    cpudist build
  into an image or onto a file system that the nodes share, and how jobs find it there:
    cpudist build --output /opt/cpudist
    export CPUDIST_CACHE=/opt/cpudist
"""


def add_options(parser: Parser) -> None:
    folder = "folder to compile into; default: $CPUDIST_CACHE, or ~/.cache/cpudist"
    parser.add_argument("--output", type=Path, metavar="DIR", help=folder)
    parser.set_defaults(every_rank=True)


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    output: Path | None = options.output and options.output.expanduser().absolute()
    if output and output.exists() and not output.is_dir():
        raise UserError(f"--output {options.output} is not a folder; give a folder, or a path where one can be made")
    # Imported here, because --help must not wait for this import.
    from cpudist.backends.ccl import compilation
    from cpudist.optimization import operators

    for build in (operators.ensure_built, compilation.ensure_built):
        started = time.time()
        path = build(output)
        print(f"{'compiled' if path.stat().st_mtime >= started else 'compiled before'}: {path}")
    if output:
        print(f"set CPUDIST_CACHE={output} where jobs run")
