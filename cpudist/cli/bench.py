"""`cpudist bench`: measure communication inside a machine and between hosts."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "measure communication here"
DESCRIPTION = "Measure how fast the ranks of a job communicate; a launcher runs it on every rank."
_TIMEOUT = 300.0  # seconds for each collective and for the start
_SUBJECTS = ("collectives", "hosts")

EPILOG = """\
what is measured:
  collectives   (a minute) allreduce from 1 KB to 96 MB, in float32 and bfloat16, on the ccl process group and on
                gloo, beside a copy of as much memory; all-gather, reduce-scatter, broadcast and all-to-all on both
  hosts         (10 minutes, longer where the network is slow) a training step across hosts, of a 24-million-parameter
                BERT under DistributedDataParallel, 4 x 128 tokens per rank: gradients as --compress auto chooses, as
                they are, as bf16 and int8, and by PowerSGD, on ccl; as they are and by PowerSGD on gloo; and a step
                without communication, with which the others are compared. It says what --compress is worth on
                this network (cpudist docs slow-networks).
                All of it needs about 6 GB of memory a rank, less with --only

All candidates take turns in one run, so a slow moment of the machine hits all alike. A time is the median
over all calls, the range behind it lies between the medians of the rounds. Ratios are taken within a round.

examples:
  two ranks on this machine, one core each, over MPI:
    mpirun -n 2 cpudist bench collectives --json collectives.json --plot collectives.png
  without MPI:
    torchrun --nproc-per-node 2 --no-python cpudist bench collectives
  on the hosts of a file, two ranks on each:
    mpirun -f hostfile -n 4 -ppn 2 cpudist bench collectives
  the options for slow networks, one rank per host; --only leaves out the others (CANDIDATE as the table names it):
    mpirun -f hostfile -n 2 -ppn 1 cpudist bench hosts
    mpirun -f hostfile -n 2 -ppn 1 cpudist bench hosts --only none --only int8
"""


def add_options(parser: Parser) -> None:
    parser.add_argument("subject", choices=_SUBJECTS, metavar=f"{{{','.join(_SUBJECTS)}}}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and where they were measured")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them (needs matplotlib)")
    parser.add_argument("--only", action="append", default=[], metavar="CANDIDATE", help="of hosts: compare these")
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds, whose figures mean little")
    parser.set_defaults(every_rank=True)


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    _check_options(options)
    from cpudist import job  # late: it imports torch

    try:
        _bench(options, launcher)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt end the job
        job.fail(error, rank=launcher.rank)


def _bench(options: argparse.Namespace, launcher: Launcher) -> None:
    # Late: they import torch, which takes seconds; --help does not need it.
    from cpudist import api
    from cpudist.bench import between_hosts, collectives, report
    from cpudist.job.job_options import JobOptions

    job = api.enter(launcher, JobOptions(backend="ccl", timeout=_TIMEOUT, from_flags=True))
    world = job.world
    if world.size < 2:
        raise UserError("one rank alone does not communicate; start it as: mpirun -n 2 cpudist bench …")
    if world.rank == 0:
        _check_outputs(options)

    def progress(line: str) -> None:
        if world.rank == 0:
            say(line, program="cpudist bench")

    if options.subject == "hosts":
        measured = between_hosts.run(world, progress, options.quick, options.only)
    else:
        measured = collectives.run(world, progress, options.quick)
    if world.rank == 0:
        where = report.environment(job)
        print(report.headline(where), report.tables(measured), sep="\n\n", flush=True)
        if options.json:
            report.write(options.json, options.subject, where, measured)
        if options.plot:
            report.draw(measured, options.plot)
    job.shutdown()


def _check_options(options: argparse.Namespace) -> None:
    if options.only:
        from cpudist.bench.between_hosts import CANDIDATES  # late: it imports torch

        if options.subject != "hosts":
            raise UserError("--only is for hosts; run cpudist bench hosts --only CANDIDATE")
        if unknown := sorted({*options.only} - {*CANDIDATES}):
            raise UserError(f"--only {unknown[0]} is not known; give one of: {', '.join(CANDIDATES)}")
    if options.subject == "hosts" and find_spec("transformers") is None:
        raise UserError("bench hosts needs transformers; install it with: pip install 'cpudist[hf]'")


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise a UserError before a long measurement if its results cannot be written."""
    if options.plot and find_spec("matplotlib") is None:
        raise UserError('--plot needs matplotlib; install it with: pip install "cpudist[plot]"')
    for path in (options.json, options.plot):
        check_output(path)


def check_output(path: Path | None) -> None:
    """Raise a UserError before a long measurement if a file cannot be written."""
    if path is None or str(path) == "-":
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file") from None
