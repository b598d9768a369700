"""The command `cpudist-train`, which every rank of a job runs, under any launcher or alone.

It finds TARGET, starts the job, runs TARGET and shuts the job down; a failure ends all ranks at once. Rank 0 writes
the run record in both cases.
"""

import argparse
import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpudist import backends, launchers
from cpudist.cli.parser import Parser, endpoint, parse, shown_once, steps
from cpudist.console import say, show_lines_at_once
from cpudist.errors import USER_ERROR, UserError
from cpudist.job.job_options import RESUME, JobOptions
from cpudist.launchers import Launcher
from cpudist.pinning import Pinning, pin, preload_allocator
from cpudist.processes.attempt import OUTPUT
from cpudist.script import long_arguments
from cpudist.script.frames import from_user_code, is_user_code
from cpudist.script.target import Target, resolve
from cpudist.training.output_log import discard_output, log_output, report_discarded

_OF_BACKEND = "backend option "  # prefix of the names of a backend's options, which may equal names of cpudist's

_EPILOG = """\
examples:
  one process, to try it out:
    cpudist-train train.py --epochs 1
  two ranks on this machine:
    mpirun -n 2 cpudist-train train.py --epochs 1
  four ranks on the hosts of a file, two on each, with a script that uses Trainer:
    mpirun -f hostfile -n 4 -ppn 2 cpudist-train --backend ccl run_qa.py --do_train --output_dir out
  under Slurm, or PyTorch's own launcher:
    srun --ntasks=4 cpudist-train train.py
    torchrun --nproc-per-node=2 --no-python cpudist-train train.py

Options come before TARGET; everything after it goes to TARGET untouched.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank and return its exit status; ends the process when the job fails."""
    if argv is None:
        long_arguments.restore()
    words = sys.argv[1:] if argv is None else list(argv)
    # Preloading executes the process once more, so it comes first: parsing takes 0.06 s (mostly for entry points of
    # packages), and would run twice. If --no-pin is an option of the script instead of ours, `pin` preloads later.
    if argv is None and words and not {"--no-pin", "--help", "-h"} & {*words}:
        preload_allocator()
    launcher = launchers.detect()
    _arrange_output(launcher)
    try:
        parser = _parser()
        options = _parse(parser, words)
        if options.help or not words:
            with shown_once(launcher):
                parser.print_help()
            return 0
        job_options = _job_options(options)
        target = resolve(options.target, options.arguments, module=options.module)
    except UserError as error:
        if launcher.is_main_process:
            say(str(error), program="cpudist-train")
        return USER_ERROR
    # If another program has called `main`, its process is not pinned.
    pinning = pin(launcher) if argv is None and options.pin else None
    return _run(options, job_options, target, launcher, pinning)


def read_words(words: Sequence[str]) -> tuple[str, bool]:
    """Return the script in arguments of `cpudist-train` (empty: no script), and whether a signal saves a checkpoint."""
    options = _parse(_parser(), list(words))
    script = options.target if not options.module and str(options.target).endswith(".py") else ""
    return script, options.checkpoint_on_signal


def _arrange_output(launcher: Launcher) -> None:
    """Show each line at once: rank 0's, or complete lines of all ranks, as `cpudist launch` has set CPUDIST_OUTPUT."""
    show_lines_at_once()
    wanted = os.environ.get(OUTPUT)
    if wanted == "rank0" and launcher.rank:
        discard_output()
    elif wanted == "all" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=False)  # with PYTHONUNBUFFERED, parts of lines would be written


def _parser() -> Parser:
    parser = Parser(
        prog="cpudist-train",
        usage="cpudist-train [OPTIONS] {SCRIPT.py | -m MODULE | COMMAND} [ARGS...]",
        description="Run TARGET on this rank of a distributed job, with the process group made for it.",
        epilog=_EPILOG,
        add_help=False,
    )
    parser.unknown_option_hint = "the launcher starts the ranks, as in: cpudist run --nproc 2 train.py"
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    names = ", ".join(backends.names())
    which = f"auto (default: ccl where it loads, otherwise gloo), {names}; a named one never falls back"
    parser.add_argument("--backend", default="auto", metavar="NAME", help=which)
    what = "bound on every collective and on the start (default 300); preparing or saving large data may need more"
    parser.add_argument("--timeout", metavar="SECONDS", help=what)
    where = "where rank 0 writes the run record, JSON (default: the output folder of a Trainer, or runs/NAME)"
    parser.add_argument("--record", type=Path, metavar="FILE", help=where)
    what = "write the output of each rank to DIR/rank-N.log, too"
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help=what)
    what = "serve the figures of `cpudist top` for Prometheus on rank 0's host, at http://127.0.0.1:N/metrics"
    parser.add_argument("--metrics-port", type=endpoint, metavar="[ADDRESS:]N", help=what)
    what = "write a trace of steps of all ranks, for ui.perfetto.dev (*.gz: compressed)"
    parser.add_argument("--timeline", type=Path, metavar="FILE", help=what)
    which = "the optimizer steps in it, counted from 0, from A until before B (default 10:15)"
    parser.add_argument("--steps", type=steps, metavar="A:B", help=which)
    what = "leave affinity, threads, memory and libraries alone"
    parser.add_argument("--no-pin", dest="pin", action="store_false", help=what)
    which = "network interface of the rendezvous and of all messages, such as eth0"
    parser.add_argument("--interface", metavar="NAME", help=which)
    how = "how gradients cross the network between hosts: none (default), bf16, int8, powersgd or powersgd:RANK"
    auto = "auto (default of --use_ipex) measures, and takes none or bf16; see `cpudist docs slow-networks`"
    parser.add_argument("--compress", metavar="SCHEME", help=f"{how}; {auto}")
    what = "on SIGTERM, SIGINT and SIGUSR1 a Trainer saves a checkpoint before the job ends (status 143, 130 or 138)"
    parser.add_argument("--checkpoint-on-signal", action="store_true", help=what)
    what = "a Trainer goes on once a checkpoint is copied in memory; a thread writes the copy before the training ends"
    parser.add_argument("--async-checkpoint", action="store_true", default=None, help=what)
    auto = "auto (default): a restarted Trainer or cpudist.Checkpoints goes on from its newest complete checkpoint"
    parser.add_argument("--resume", choices=RESUME, help=f"{auto}; never: it starts at the first step again")
    what = "end the job with all ranks' stacks after so long without a step, a collective or a batch on any rank"
    when = "counted from the first step on (default: never); give more than saving or evaluating takes"
    parser.add_argument("--stall", metavar="SECONDS", help=f"{what}, {when}")
    what = "let each rank's share of a training step follow its speed, on unequal hosts; the model stays the same"
    parser.add_argument("--balance", action="store_true", default=None, help=what)
    for name, backend in backends.plugins().items():
        _add_options(parser.add_argument_group(f"with --backend {name}"), name, backend)
    parser.add_argument("-m", dest="module", action="store_true", help="TARGET is a module, as with python -m")
    which = "path/to/script.py, a module, or a command of a Python package"
    parser.add_argument("target", nargs="?", metavar="TARGET", help=which)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what TARGET gets as its arguments")
    return parser


def _parse(parser: Parser, words: list[str]) -> argparse.Namespace:
    options = parse(parser, words)
    if options.target is None and not options.help and words:
        raise UserError("no TARGET; give the path of a script, or -m and a module")
    return options


def _add_options(group: argparse._ArgumentGroup, name: str, backend: type[backends.Backend]) -> None:
    """Add the options of a backend to its group; `UserError` if another backend or cpudist uses an option's name."""
    for option in backend.options:
        settings: dict[str, Any] = {"dest": f"{_OF_BACKEND}{option.name}", "help": option.help}
        if option.type is bool:
            settings |= {"action": "store_true", "default": False}
        else:
            settings |= {"type": option.type, "choices": option.choices or None, "default": option.default}
            settings |= {"metavar": option.metavar}
        try:
            group.add_argument(option.flag, **settings)
        except argparse.ArgumentError as error:
            raise UserError(
                f"an option of the backend {name} is in use already: {error}; uninstall its package"
            ) from error


def _job_options(options: argparse.Namespace) -> JobOptions:
    given = vars(options)
    own = {
        option.name: given[f"{_OF_BACKEND}{option.name}"]
        for backend in backends.plugins().values()
        for option in backend.options
        if given[f"{_OF_BACKEND}{option.name}"] != option.default
    }
    return JobOptions.from_given(given, backend_options=own, from_flags=True)


def _run(
    options: argparse.Namespace, job_options: JobOptions, target: Target, launcher: Launcher, pinning: Pinning | None
) -> int:
    # Imported here, because torch takes seconds, and --help and errors in options do not need it. Garbage collection is
    # off and torch's objects are frozen: scanning them during the import and at the exit takes 0.3 s of CPU time.
    gc.disable()
    from cpudist import api, job
    from cpudist.training.run_target import run_target

    gc.freeze()
    gc.enable()

    try:
        if options.log_dir is not None:
            log_output(options.log_dir, launcher.rank or 0, again=launcher.restarts > 0)
        started = api.enter(launcher, job_options, pinning)
        if options.log_dir is None:
            report_discarded(started)
        return run_target(target, started)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt end the job
        job.fail(error, _show, launcher.rank)


def _show(error: BaseException) -> None:
    """Print the traceback as plain `python script.py` would: without cpudist's frames."""
    where = from_user_code(error.__traceback__)
    compiled = where is None or is_user_code(where.tb_frame) or not isinstance(error, SyntaxError)
    traceback.print_exception(type(error), error, where if compiled else None)
