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
number that `cpudist plan --measure` has found. A script written for torchrun runs unmodified, with
torchrun's --standalone, --nnodes 1, --nproc-per-node, --max-restarts and --log-dir.
"""

EPILOG = """\
examples:
  a script with its arguments:
    cpudist run train.py --epochs 3
  a module, or a command of a Python package, on two ranks:
    cpudist run --nproc 2 -m package.training --epochs 3
    cpudist run --nproc 2 llamafactory-cli train sft.yaml
  on two ranks, with options of cpudist-train before the script:
    cpudist run --nproc 2 -- --backend gloo train.py --epochs 3

`cpudist launch` has more options, for several hosts.
"""

_SEVERAL_HOSTS = "give several hosts to launch: cpudist launch --hostfile hosts -- train.py"


def add_options(parser: Parser) -> None:
    parser.usage = "cpudist run [OPTIONS] {[-m] TARGET | -- [OPTIONS OF cpudist-train] TARGET} [ARGS...]"
    ranks = "number of ranks (default: those of cpudist plan)"
    parser.add_argument("-n", "--nproc", "--nproc-per-node", dest="ranks", type=_ranks, metavar="N", help=ranks)
    launch.add_common_options(parser)
    parser.add_argument("--log-dir", metavar="DIR", help="write the output of each rank to DIR/rank-N.log, too")
    parser.add_argument("--standalone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--nnodes", type=_one_node, help=argparse.SUPPRESS)
    parser.add_argument("-m", "--module", action="store_true", help="TARGET is a module, as with python -m")
    add_target(parser)
    hint = "cpudist-train's follow `--`, as in: cpudist run -- --timeout 60 train.py; one host needs no rendezvous"
    parser.unknown_option_hint = f"{hint}; {_SEVERAL_HOSTS}"


def _ranks(text: str) -> int:
    if text in ("auto", "cpu", "gpu"):
        raise argparse.ArgumentTypeError(f"{text} is torchrun's; leave it out for as many ranks as cpudist plan shows")
    return count(text)


def _one_node(text: str) -> int:
    if text not in ("1", "1:1"):
        raise argparse.ArgumentTypeError(_SEVERAL_HOSTS)
    return 1


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    values = own_values(options)
    log_dir, module, *_ = (values.pop(name) for name in ("log_dir", "module", "standalone", "nnodes"))
    if values["arguments"]:
        own = [*([] if log_dir is None else ["--log-dir", log_dir]), *["-m"] * module]
        values["arguments"] = own + values["arguments"]
    raise SystemExit(jobs.run_job(find_mpirun("auto"), launch.job_of({**values, "hosts": None}, launcher)))
