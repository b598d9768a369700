"""`cpudist test`: check the hosts and the network of a cluster."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cpudist import answers
from cpudist.cli.bench import check_output
from cpudist.cli.doctor import show
from cpudist.cli.parser import Parser
from cpudist.errors import FAILED, UserError
from cpudist.launchers import Launcher

if TYPE_CHECKING:
    from cpudist.cluster.cluster_figures import ClusterFigures

HELP = "is this cluster all right: hosts, links, a small training"
DESCRIPTION = """\
Measure each host (computing, memory), each link between two hosts, collectives and a small training, in a minute for
four hosts. Say what is out of line with the other hosts; the exit status is then 1.
"""
EPILOG = """\
examples:
  the hosts of a file, one rank on each:
    cpudist test --hostfile hosts
  under a launcher:
    mpirun -f hosts -n 4 -ppn 1 cpudist test --json cluster.json
    srun --ntasks-per-node=1 cpudist test
"""
_TIMEOUT = 120.0  # seconds for the start and for each collective


def add_options(parser: Parser) -> None:
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="start a rank on each host of this file")
    parser.add_argument("--interface", metavar="NAME", help="network interface for all traffic, such as eth0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and findings; - for the output")
    parser.set_defaults(every_rank=True)


def run(options: argparse.Namespace, launcher: Launcher) -> None:
    """Measure, and print the figures and findings; exit with status 1 if there is a finding."""
    if options.hostfile is not None and launcher.name == "single":
        check_output(options.json)
        figures = _on_hosts(options.hostfile, options.interface)
    else:
        from cpudist import job  # late: it imports torch

        try:
            figures = _as_rank(launcher, options.interface, options.json)
        except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt end the job
            job.fail(error, rank=launcher.rank)
    if launcher.is_main_process:
        _report(figures, options.json)


def _as_rank(launcher: Launcher, interface: str | None, file: Path | None) -> ClusterFigures:
    from cpudist import api, job
    from cpudist.cluster.measure import measure
    from cpudist.job.job_options import JobOptions

    running = job.current() or api.enter(launcher, JobOptions(timeout=_TIMEOUT, interface=interface, from_flags=True))
    if running.world.rank == 0:
        check_output(file)
    figures = measure(running)
    api.shutdown()
    return figures


def _on_hosts(hostfile: Path, interface: str | None) -> ClusterFigures:
    """Start the ranks with `cpudist launch`, and return the figures that rank 0 prints."""
    from cpudist.cluster.cluster_figures import ClusterFigures

    words = ["launch", "--hostfile", str(hostfile), "--ppn", "1", *(["--interface", interface] if interface else [])]
    words += ["--", "--timeout", str(_TIMEOUT), "-m", "cpudist", "test", "--json", "-"]
    command = [sys.executable, "-P", "-m", "cpudist", *words]
    job = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if job.returncode:
        raise SystemExit(job.returncode)
    try:
        return answers.taken(answers.last_line(job.stdout), "figures", ClusterFigures)[0]
    except ValueError:
        raise UserError("the ranks gave no figures; start them by mpirun -f hosts -ppn 1 cpudist test") from None


def _report(figures: ClusterFigures, file: Path | None) -> None:
    from cpudist.cluster.cluster_figures import keep
    from cpudist.cluster.judgement import judge
    from cpudist.cluster.tables import tables

    findings = judge(figures)
    fields = json.dumps({"figures": asdict(figures), "findings": list(map(asdict, findings))})
    if str(file) == "-":
        print(fields)
        return
    print(tables(figures), end="\n\n")
    show(findings)
    if file is not None:
        file.write_text(fields + "\n", encoding="utf-8")
    if findings:
        raise SystemExit(FAILED)
    keep(figures)
