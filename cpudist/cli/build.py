"""`cpudist build`: compile the oneCCL backend before it is needed, where there is a compiler."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.environments import Environment
from cpudist.errors import UserError

_DESCRIPTION = """\
Compile the oneCCL backend ahead of time. The first job would do it by itself, but needs a C++ compiler then,
and about half a minute. A binary serves the versions of torch, Python and oneCCL that it was compiled with.
"""

_EPILOG = """\
examples:
  into this user's cache:
    cpudist build
  into an image or onto a file system that the nodes share, and how jobs find it there:
    cpudist build --output /opt/cpudist
    export CPUDIST_CACHE=/opt/cpudist
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `build`."""
    parser = commands.add_parser(
        "build",
        help="compile the oneCCL backend ahead of time",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder to compile into; default: $CPUDIST_CACHE, or ~/.cache/cpudist",
    )
    parser.set_defaults(action=_build, every_rank=False)


def _build(options: argparse.Namespace, environment: Environment) -> None:
    output: Path | None = options.output and options.output.expanduser().absolute()
    if output and output.exists() and not output.is_dir():
        raise UserError(f"--output {options.output} is not a folder; name one that is, or that can be made")
    # Late: it imports torch, which takes seconds that --help need not wait for.
    from cpudist.backends.ccl.build import ensure_built

    started = time.time()
    path = ensure_built(output)
    if path.stat().st_mtime >= started:
        print(f"compiled in {time.time() - started:.0f} s: {path}")
    else:
        print(f"was there already: {path}")
    if output:
        print(f"set CPUDIST_CACHE={output} where jobs run")
