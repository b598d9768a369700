"""`cpudist test`: check the hosts and the network of a cluster."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from cpudist import typed_json
from cpudist.bench.cluster_figures import ClusterFigures, keep, proposed_shares
from cpudist.bench.judgement import bits, judge, least_share, slow_and_late
from cpudist.cli.bench import check_output
from cpudist.cli.doctor import show
from cpudist.cli.parser import Parser
from cpudist.console import aligned, colored, size
from cpudist.errors import FAILED, UserError
from cpudist.launchers import Launcher

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
_WIDTH = 80
_GOOD = 0.75  # links below this share of the usual bandwidth are yellow


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
    from cpudist.bench.cluster import measure
    from cpudist.job.job_options import JobOptions

    running = job.current() or api.enter(launcher, JobOptions(timeout=_TIMEOUT, interface=interface, from_flags=True))
    if running.world.rank == 0:
        check_output(file)
    figures = measure(running)
    api.shutdown()
    return figures


def _on_hosts(hostfile: Path, interface: str | None) -> ClusterFigures:
    """Start the ranks with `cpudist launch`, and return the figures that rank 0 prints."""
    words = ["launch", "--hostfile", str(hostfile), "--ppn", "1", *(["--interface", interface] if interface else [])]
    words += ["--", "--timeout", str(_TIMEOUT), "-m", "cpudist", "test", "--json", "-"]
    command = [sys.executable, "-P", "-m", "cpudist", *words]
    job = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if job.returncode:
        raise SystemExit(job.returncode)
    try:
        return typed_json.read(ClusterFigures, typed_json.last_line(job.stdout)["figures"])
    except (ValueError, TypeError, KeyError):
        raise UserError("the ranks gave no figures; start them by mpirun -f hosts -ppn 1 cpudist test") from None


def _report(figures: ClusterFigures, file: Path | None) -> None:
    findings = judge(figures)
    fields = json.dumps({"figures": asdict(figures), "findings": list(map(asdict, findings))})
    if str(file) == "-":
        print(fields)
        return
    print(_tables(figures), end="\n\n")
    show(findings)
    if file is not None:
        file.write_text(fields + "\n", encoding="utf-8")
    if findings:
        raise SystemExit(FAILED)
    keep(figures)


def _tables(figures: ClusterFigures) -> str:
    """Return a line for each host, the matrix of links, and the collectives."""
    hosts: list[Sequence[str]] = [("host", "cores", "float32", "bfloat16", "copy", "clock", "free")]
    for host in figures.hosts:
        clock = f"{host.clock / 1e9:.1f} GHz" if host.clock else "-"
        flops = [f"{host.flops[dtype] / 1e9:.0f} GFLOP/s" for dtype in ("float32", "bfloat16")]
        hosts.append((host.name, str(host.cores), *flops, f"{size(host.copied)}/s", clock, size(host.memory)))
    blocks = ["\n".join(aligned(hosts)), *(_matrix(figures) if figures.links else ())]
    times = ", ".join(f"{size(bytes)} {1e3 * seconds:.3g} ms" for bytes, seconds in figures.allreduces.items())
    if shares := proposed_shares({host.name: host.flops["float32"] for host in figures.hosts}):
        blocks.append(f"unequal hosts train together with --balance; for the hostfile: {shares}")
    blocks.append(f"allreduce on {figures.backend}: {times}\nloss of a small training: {figures.loss[0]:.6g}")
    return "\n\n".join(blocks)


def _matrix(figures: ClusterFigures) -> Iterator[str]:
    """Yield a matrix of the links' bandwidths, with slow links in red; yield nothing if it is too wide."""
    least = least_share(figures.hosts)
    usual = slow_and_late(figures.links, figures.hosts)[2].bandwidth
    cells = {(link.source, link.target): _cell(link.bandwidth / usual, least) for link in figures.links}
    numbers = range(len(figures.hosts))
    names = aligned([(str(1 + number), host.name) for number, host in enumerate(figures.hosts)])
    first = max(map(len, names))
    lines = [f"links in % of {bits(usual)}, from the host of a line to that of a column"]
    lines.append(" " * first + "".join(f"{1 + number:4}" for number in numbers))
    for source, name in enumerate(names):
        lines.append(f"{name:{first}}" + "".join(cells.get((source, target), "    ") for target in numbers))
    if first + 4 * len(numbers) <= _WIDTH:
        yield "\n".join(lines)


def _cell(share: float, least: float) -> str:
    level = "error" if share < least else "warning" if share < _GOOD else "ok"
    return colored(f"{100 * share:4.0f}", level)
