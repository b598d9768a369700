"""`cpudist bench`: measure communication and training on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpudist.cli.parser import Parser
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.launchers import Launcher

if TYPE_CHECKING:
    from cpudist.bench.report import Results

HELP = "measure communication and training here"
DESCRIPTION = "Measure how fast the ranks of a job communicate and train; a launcher runs it on every rank."
_TIMEOUT = 300.0  # seconds, for any one call
_ENOUGH_RANKS = {"collectives": 2, "ddp": 2, "hosts": 2, "train": 1}
_JOBS = "jobs"
_ON_ANY_BACKEND = ("collectives", "ddp")

EPILOG = """\
what is measured:
  collectives   (a minute) allreduce from 1 KB to 96 MB, in float32 and bfloat16, on the ccl process group, on gloo,
                on oneCCL (the same process group without our shared memory) and on MPI through mpi4py, beside what
                torch itself takes for a call and a copy of as much memory; all-gather, reduce-scatter, broadcast and
                all-to-all on ccl and gloo. --busy: the allreduces up to 4 MB, with a process that computes on every
                core of the ranks
  ddp           (some minutes) a training step of a 24-million-parameter BERT under DistributedDataParallel,
                in float32 and bfloat16, on ccl and gloo with several kinds of buckets, and without communication
  hosts         (10 minutes, longer where the network is slow) the same model, 4 x 128 tokens per rank, across hosts:
                gradients as --compress auto chooses, as they are, as bf16 and int8, and by PowerSGD, on ccl; as they
                are, by torch's fp16 hook and by PowerSGD on gloo; and a step without communication, of which the others
                are multiples. It says what --compress is worth on this network (docs/slow-networks.md). All of it needs
                about 6 GB of memory a rank, less with --only
  train         (some minutes) the same step under what cpudist.optimize can choose: float32, bfloat16 by autocast
                or with master weights, compiled, and with Intel's extension where it is installed
  --backend     collectives and ddp on another backend than ccl: collectives of tensors on its device beside gloo's of
                CPU tensors, and a step that the device computes, with and without communication, after minutes
                where it has to be compiled
  jobs          (a quarter of an hour) one script of Hugging Face's Trainer on two ranks, as torchrun and accelerate
                launch start it on gloo, and mpirun on ccl, in float32 and bfloat16. No launcher: it starts them

All candidates take turns in one run, so a slow moment of the machine hits all alike. A time is the median
over all calls, the range behind it lies between the medians of the rounds. Ratios are taken within a round.
With --busy a round counts by its mean: a few calls, that wait for a time slice, take most of the time.

examples:
  two ranks on this machine, one core each, over MPI:
    mpirun -n 2 cpudist bench collectives --json collectives.json --plot collectives.png
  without MPI:
    torchrun --nproc-per-node 2 --no-python cpudist bench collectives
  on the hosts of a file, two ranks on each:
    mpirun -f hostfile -n 4 -ppn 2 cpudist bench ddp
  the options for slow networks, one rank per host; --only leaves out the others (CANDIDATE as the table names it):
    mpirun -f hostfile -n 2 -ppn 1 cpudist bench hosts
    mpirun -f hostfile -n 2 -ppn 1 cpudist bench hosts --only none --only int8
  what is worth having on this CPU:
    cpudist bench train
  what a whole job gains here by being started with cpudist:
    cpudist bench jobs
"""


def add_options(parser: Parser) -> None:
    """Add the options of `cpudist bench`."""
    subjects = (*_ENOUGH_RANKS, _JOBS)
    parser.add_argument("subject", choices=subjects, metavar=f"{{{','.join(subjects)}}}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and where they were measured")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them (needs matplotlib)")
    parser.add_argument("--busy", action="store_true", help="of collectives: beside other work on the same cores")
    parser.add_argument(
        "--backend", default="ccl", metavar="NAME", help="of collectives and ddp: measure this one (ccl)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CANDIDATE", help="of hosts: compare these alone"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds, whose figures mean little")
    parser.set_defaults(every_rank=True)


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    """Run `jobs` in one process, which starts jobs, and everything else on every rank of a job."""
    _check_options(options)
    if options.subject == _JOBS:
        if launcher.is_main_process:
            _jobs(options, launcher)
        return
    from cpudist import job  # late: it imports torch

    try:
        _bench(options, launcher)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt end the job
        job.fail(error, rank=launcher.rank)


def _bench(options: argparse.Namespace, launcher: Launcher) -> None:
    # Late: they import torch, which takes seconds that --help need not wait for.
    from cpudist import api
    from cpudist.bench import collectives, ddp, hosts, report, train

    job = api.enter(launcher, options.backend, _TIMEOUT)
    world = job.world
    if world.size < _ENOUGH_RANKS[options.subject]:
        raise UserError("one rank alone does not communicate; start it as: mpirun -n 2 cpudist bench …")
    if world.rank == 0:
        _check_outputs(options)

    def progress(line: str) -> None:
        if world.rank == 0:
            _progress(line)

    subjects: dict[str, Callable[..., Results]] = {
        "collectives": partial(collectives.run, beside_others=options.busy),
        "ddp": ddp.run,
        "hosts": partial(hosts.run, only=options.only),
        "train": train.run,
    }
    measured = subjects[options.subject](world, progress, options.quick)
    if world.rank == 0:
        where = report.environment(job)
        _show(options, report.headline(where, options.busy), where, measured)
    job.shutdown()


def _jobs(options: argparse.Namespace, launcher: Launcher) -> None:
    from cpudist.bench import commands, jobs, report

    if launcher.placement().size > 1:
        raise UserError(f"bench jobs starts its jobs itself; run it without {launcher.name}: cpudist bench jobs")
    _check_outputs(options)
    where = report.machine()
    measured = jobs.run(_progress, options.quick)
    _show(options, report.headline_of_jobs(where, commands.RANKS), where, measured)
    for line in measured.other_losses():
        _progress(f"warning: different training: {line}")


def _show(
    options: argparse.Namespace,
    headline: str,
    where: dict[str, Any],
    measured: Results,
) -> None:
    from cpudist.bench import plot, report

    print(headline, measured.table(), sep="\n\n", flush=True)
    if options.json:
        report.write(options.json, options.subject, where, measured)
    if options.plot:
        plot.draw(measured, options.plot)


def _progress(line: str) -> None:
    say(line, program="cpudist bench")


def _check_options(options: argparse.Namespace) -> None:
    if options.only:
        from cpudist.bench import hosts  # late: it imports torch

        if options.subject != "hosts":
            raise UserError("--only is for hosts; run cpudist bench hosts --only CANDIDATE")
        if unknown := sorted({*options.only} - {*hosts.CANDIDATES}):
            raise UserError(f"--only {unknown[0]} is not known; give one of: {', '.join(hosts.CANDIDATES)}")
    if options.backend != "ccl" and options.subject not in _ON_ANY_BACKEND:
        takers = " and ".join(_ON_ANY_BACKEND)
        raise UserError(f"bench {options.subject} is about ccl; leave --backend out, it is for {takers}")
    if options.busy and options.subject != "collectives":
        raise UserError("--busy is for collectives; run cpudist bench collectives --busy")


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise a UserError before minutes of measurement where the results cannot be written."""
    if options.plot and find_spec("matplotlib") is None:
        raise UserError('--plot needs matplotlib; install it with: pip install "cpudist[plot]"')
    for path in filter(None, (options.json, options.plot)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; name another file") from None
