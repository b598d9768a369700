"""`cpudist render`: what starts a job on a cluster, as text on standard output."""

from __future__ import annotations

import argparse

from cpudist.cli.parser import Parser
from cpudist.environments import Environment
from cpudist.render.kinds import KINDS
from cpudist.render.option import Kind, read_all

_DESCRIPTION = """\
Print a manifest for Kubernetes, or a batch script for Slurm, that trains TARGET as cpudist-train does. Nothing is sent
anywhere. What follows `--` goes to cpudist-train as it is (cpudist-train --help).
"""

_EPILOG = """\
examples:
  two pods of two ranks each, with data and checkpoints on a claim that both mount:
    cpudist render pytorchjob --replicas 2 --ranks-per-pod 2 --cpus 8 --memory 16Gi --pvc data \\
        -- images --dataset_name digits --output_dir out --do_train > job.yaml
    kubectl apply -f job.yaml
  the same over MPI, and on Slurm:
    cpudist render mpijob --mpi intel --replicas 2 --ranks-per-pod 2 --cpus 8 --pvc data -- train.py --epochs 3
    cpudist render slurm --nodes 2 --ranks-per-socket 1 --cpus-per-rank 24 --time 04:00:00 -- train.py --epochs 3
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `render`, with a command of its own for each kind."""
    parser = commands.add_parser(
        "render",
        help="print what starts a job on Kubernetes or Slurm",
        usage="cpudist render KIND [OPTIONS] -- TARGET [ARGS...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for kind in KINDS:
        _add_kind(kinds, kind)


def _add_kind(kinds: argparse._SubParsersAction[Parser], kind: Kind) -> None:
    parser = kinds.add_parser(
        kind.name,
        help=kind.summary,
        usage=f"cpudist render {kind.name} [OPTIONS] -- TARGET [ARGS...]",
        description=f"Print {kind.summary}.",
        allow_abbrev=False,
    )
    for option in kind.options:
        # As text, without a type: argparse would stop at the first mistake.
        parser.add_argument(
            option.flag, metavar=option.metavar, action="append" if option.several else "store", help=option.help
        )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- TARGET [ARGS...]", help="for cpudist-train")
    parser.set_defaults(action=_render, every_rank=False, kind=kind)


def _render(options: argparse.Namespace, environment: Environment) -> None:
    if not environment.speaks:
        return
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    missing = "no TARGET; give a script, -m and a module, or a recipe after `--`, as for cpudist-train"
    values = read_all(options.kind, vars(options), [] if arguments else [missing])
    print(options.kind.render(arguments, values), end="")
