"""`cpudist render`: print a manifest for Kubernetes or a batch script for Slurm."""

from __future__ import annotations

import argparse

from cpudist.cli.parser import NO_TARGET, Parser, add_target, own_values
from cpudist.errors import UserError
from cpudist.launchers import Launcher
from cpudist.render import KINDS
from cpudist.render.job import RenderedJob
from cpudist.render.values import Invalid

HELP = "print a manifest for Kubernetes or a script for Slurm"
DESCRIPTION = """\
Print a manifest for Kubernetes, or a batch script for Slurm, that trains TARGET as cpudist-train does. Nothing is sent
anywhere. The arguments after `--` are those of cpudist-train (cpudist-train --help).
"""

EPILOG = """\
examples:
  two pods of two ranks each, with data and checkpoints on a claim that both mount:
    cpudist render pytorchjob --replicas 2 --ranks-per-pod 2 --cpus 8 --memory 16Gi --pvc data \\
        -- images --dataset_name digits --output_dir out --do_train > job.yaml
    kubectl apply -f job.yaml
  the same over MPI, and on Slurm:
    cpudist render mpijob --mpi intel --replicas 2 --ranks-per-pod 2 --cpus 8 --pvc data -- train.py --epochs 3
    cpudist render slurm --nodes 2 --ranks-per-socket 1 --cpus-per-rank 24 --time 04:00:00 -- train.py --epochs 3
"""


def add_options(parser: Parser) -> None:
    """Add the options of `cpudist render`."""
    parser.usage = "cpudist render KIND [OPTIONS] -- TARGET [ARGS...]"
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True, prog="cpudist render")
    for name, kind in KINDS.items():
        one = kinds.add_parser(
            name,
            help=kind.SUMMARY,
            usage=f"cpudist render {name} [OPTIONS] -- TARGET [ARGS...]",
            description=f"Print {kind.SUMMARY}.",
        )
        kind.add_options(one)
        add_target(one)
        one.set_defaults(kind=kind)


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Print the manifest or the script, or raise `UserError` where options are wrong."""
    values = own_values(options)
    kind: type[RenderedJob] = values.pop("kind")
    problems = [] if values["arguments"] else [NO_TARGET]
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Invalid):
                problems.append(f"--{name.replace('_', '-')} {one.text!r}: {one.reason}")
    if problems:
        raise UserError("\n".join(problems))
    job = kind(**values)
    if contradictions := job.contradictions():
        raise UserError("\n".join(contradictions))
    print(job.render(), end="")
