"""`cpudist doctor`: show the installed packages, the choices for a job, the faults and their remedies."""

import argparse
import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from cpudist.cli.parser import Parser
from cpudist.console import colored, number_of, size
from cpudist.errors import UserError
from cpudist.findings import LEVELS, Finding
from cpudist.hosts.check import check_hosts
from cpudist.hosts.hostfile import read
from cpudist.launchers import Launcher
from cpudist.launchers.mpi_launcher import Host

HELP = "check this host and environment, with remedies"
DESCRIPTION = """\
Check this host and this environment for what makes jobs fail or slow, or with --hostfile the hosts of a job for what
prevents them from working together. Nothing is changed. What matters most comes last.
The exit status is 1 when a job would fail, otherwise 0, also with warnings.
"""


def add_options(parser: Parser) -> None:
    these = "check these hosts instead, over ssh and all at once: reachable, the same environment, sane"
    parser.add_argument("--hostfile", dest="hosts", type=read, metavar="FILE", help=these)
    parser.add_argument("--interface", metavar="NAME", help="network interface that connects them, such as eth0")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Print the findings; exit with status 1 if a job would fail."""
    from cpudist.doctor import examine  # Late: the checks import packages, which --help does not need.

    if options.interface and not options.hosts:
        raise UserError("--interface is for the hosts of a job; give --hostfile FILE, too")
    findings = _hosts(options.hosts, options.interface) if options.hosts else examine()
    failing = any(finding.level == "error" for finding in findings)
    if options.json:
        print(json.dumps({"ok": not failing, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        show(findings)
    if failing:
        raise SystemExit(1)


def show(findings: Sequence[Finding]) -> None:
    """Print findings, the worst last, and a line with their number."""
    width = shutil.get_terminal_size().columns
    worst_last = sorted(findings, key=lambda finding: LEVELS.index(finding.level), reverse=True)
    for finding in worst_last:
        first, *more = _lines(finding, width)
        print(colored(finding.level, finding.level) + first.removeprefix(finding.level), *more, sep="\n")
    print(_verdict(findings))


def _hosts(hosts: list[Host], interface: str | None) -> list[Finding]:
    """Check hosts as `cpudist launch` does, and return the findings."""
    checked = check_hosts(hosts, shared=True, interface=interface)
    return [finding for findings in checked.findings.values() for finding in findings] + [
        Finding(
            "ok", f"{host.where}: {host.name}", f"torch {facts.versions['torch']}, {size(facts.memory)} of memory free"
        )
        for host, facts in checked.facts.items()
        if not checked.findings[host]
    ]


def _verdict(findings: Sequence[Finding]) -> str:
    errors, warnings = (sum(finding.level == level for finding in findings) for level in ("error", "warning"))
    less = "a job would run, but not as well as it could" if warnings else "all is well"
    what = "a job would fail" if errors else less
    return f"{number_of(errors, 'error')}, {number_of(warnings, 'warning')}: {what}"


def _lines(finding: Finding, width: int) -> list[str]:
    texts = [f"{finding.level:<9}{finding.about}: {finding.message}"]
    if finding.remedy:
        texts.append(f"{' ' * 9}remedy: {finding.remedy}")
    wrapper = textwrap.TextWrapper(max(width, 40), subsequent_indent=" " * 9)
    wrapper.break_on_hyphens = wrapper.break_long_words = False  # so that paths can be copied
    return [line for text in texts for line in wrapper.wrap(text)]
