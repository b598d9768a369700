"""`cpudist-train`: what every rank of a job runs, under any launcher or alone.

Finds TARGET, lets the ranks meet, runs TARGET, and ends together with the other ranks: in success with the
run record, in failure everywhere at once.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import get_args

from cpudist import environments
from cpudist.cli.parser import Parser, number_of_processes, shown_once
from cpudist.console import say
from cpudist.environments import Environment
from cpudist.errors import USER_ERROR, UserError
from cpudist.pinning import Pinning, pin
from cpudist.pinning.preload import OpenMP
from cpudist.training.recipes import RECIPES
from cpudist.training.target import Recipe, Target, resolve

_EPILOG = """\
recipes (cpudist-train RECIPE --help lists a recipe's options):
{recipes}

examples:
  one process, to try it out:
    cpudist-train train.py --epochs 1
  two ranks on this machine:
    mpirun -n 2 cpudist-train clm --train_file *.txt --output_dir out --do_train
  four ranks on the hosts of a file, two on each, with a script that uses Trainer:
    mpirun -f hostfile -n 4 -ppn 2 cpudist-train --backend ccl run_qa.py --do_train --output_dir out
  under Slurm, or PyTorch's own launcher:
    srun --ntasks=4 cpudist-train train.py
    torchrun --nproc-per-node=2 --no-python cpudist-train train.py

Options come before TARGET; everything after it goes to TARGET untouched.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns its exit status, or ends the process when the job fails."""
    words = sys.argv[1:] if argv is None else list(argv)
    environment = environments.detect()
    _arrange_output(environment)
    try:
        options = _parse(words)
        if options.help or not words:
            with shown_once(environment):
                _parser().print_help()
            return 0
        target = resolve(options.target, options.args, module=options.module)
        if isinstance(target, Recipe) and target.wants_help:
            if environment.speaks:  # not the others: a recipe takes seconds to import
                target.run()
            return 0
    except UserError as error:
        if environment.speaks:
            say(str(error), program="cpudist-train")
        return USER_ERROR
    try:
        # Not where another program calls this: the process is not ours then.
        pinning = pin(environment, words, options.openmp) if argv is None and not options.no_pin else None
    except UserError as error:  # about this host, so every rank says it
        say(str(error), program="cpudist-train")
        return USER_ERROR
    return _run(options, target, environment, pinning)


def _arrange_output(environment: Environment) -> None:
    """As `cpudist launch` wants it: rank 0's standard output alone, or everybody's in whole lines, to be marked."""
    wanted = os.environ.get("CPUDIST_OUTPUT")
    if wanted == "rank0" and environment.rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif wanted == "all" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def _parser() -> Parser:
    recipes = "\n".join(f"  {name:<10}{text}" for name, text in RECIPES.items())
    parser = Parser(
        prog="cpudist-train",
        usage="cpudist-train [OPTIONS] {SCRIPT.py | -m MODULE | RECIPE} [ARGS...]",
        description="Run TARGET on this rank of a distributed job, with the process group made for it.",
        epilog=_EPILOG.format(recipes=recipes),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help="auto (default: ccl where it loads, otherwise gloo), ccl, gloo or xla; a named one never falls back",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="bound on every collective and on the start (default 300); preparing large data, or saving a "
        "large checkpoint, may need more",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="where rank 0 writes the run record, JSON (recipes default to OUTPUT_DIR/cpudist.json)",
    )
    parser.add_argument(
        "--data-workers",
        type=number_of_processes,
        metavar="N",
        help="processes that load data for each rank, to be given cores of their own; read from Trainer's "
        "--dataloader_num_workers where it is on the command line or in a file of arguments",
    )
    parser.add_argument(
        "--openmp",
        choices=get_args(OpenMP),
        default="torch",
        help="torch computes with its own OpenMP (default) or with Intel's, from pip install intel-openmp",
    )
    parser.add_argument("--no-pin", action="store_true", help="leave affinity, threads, memory and libraries alone")
    parser.add_argument(
        "--interface", metavar="NAME", help="network interface over which the ranks meet and send, such as eth0"
    )
    parser.add_argument(
        "--checkpoint-on-signal",
        action="store_true",
        help="on SIGTERM, SIGINT and SIGUSR1 a Trainer saves a checkpoint before the job ends (status 143, 130 or 138)",
    )
    xla = parser.add_argument_group("with --backend xla")
    xla.add_argument("--device", choices=["cpu", "cuda", "tpu"], help="what PyTorch/XLA computes on (PJRT_DEVICE)")
    xla.add_argument(
        "--mesh",
        metavar="AXES",
        help="one program over a mesh of all devices: data=4, fsdp=4, data=2,model=2; -1 stands for the rest",
    )
    xla.add_argument(
        "--sharding", metavar="FILE", help="how parameters lie on the mesh: JSON, patterns of names to partition specs"
    )
    xla.add_argument("--show-sharding", action="store_true", help="print how tensors lie on the devices")
    parser.add_argument("-m", dest="module", action="store_true", help="TARGET is a module, as with python -m")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="path/to/script.py, a module or a recipe")
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="what TARGET gets as its arguments")
    return parser


def _parse(words: list[str]) -> argparse.Namespace:
    options = _parser().parse_args(words)
    if options.target is None and not options.help and words:
        raise UserError("no TARGET; give a script, -m and a module, or a recipe: " + ", ".join(RECIPES))
    if options.no_pin and options.openmp != "torch":
        raise UserError("--no-pin leaves the OpenMP library alone as well; leave out one of --no-pin and --openmp")
    return options


def _backend_options(options: argparse.Namespace) -> dict[str, object]:
    """What was said for the backend alone."""
    names = ("device", "mesh", "sharding", "show_sharding")
    return {name: getattr(options, name) for name in names if getattr(options, name)}


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _run(options: argparse.Namespace, target: Target, environment: Environment, pinning: Pinning | None) -> int:
    # Late: torch takes seconds to import, which a wrong option or --help need not wait for.
    from cpudist import api, job
    from cpudist.training.run import run_target

    try:
        settings = _backend_options(options)
        running = api.enter(environment, options.backend, options.timeout, settings, options.interface, pinning)
        return run_target(target, running, options.record, options.checkpoint_on_signal)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt end the job too
        job.fail(error, _show, environment.rank)


def _show(error: BaseException) -> None:
    """Print the traceback as plain `python script.py` would: without the frames that led into the script."""
    where = error.__traceback__
    while where is not None and _is_ours(where):
        where = where.tb_next
    traceback.print_exception(type(error), error, where or error.__traceback__)


def _is_ours(where: TracebackType) -> bool:
    name = where.tb_frame.f_globals.get("__name__", "")
    return name in (__name__, "runpy", "cpudist.training.run", "cpudist.training.target")
