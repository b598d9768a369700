"""`cpudist doctor`: show what is installed, what a job would use, what is wrong and the remedy."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from dataclasses import asdict
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.console import size
from cpudist.finding import Finding
from cpudist.hosts.check import check
from cpudist.hosts.hostfile import read
from cpudist.launchers import Launcher

HELP = "check this host and environment, with remedies"
DESCRIPTION = """\
Check this host and this environment for what makes jobs fail or slow, or with --hostfile the hosts of a job for what
prevents them from working together. Nothing is changed.
The exit status is 1 when a job would fail, otherwise 0, also with warnings.
"""
EPILOG = None


def add_options(parser: Parser) -> None:
    """Add the options of `cpudist doctor`."""
    parser.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="check these hosts instead, over ssh and all at once: reachable, the same environment, sane",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Print the findings; exit with status 1 if a job would fail."""
    # Late: the checks import packages, for which --help need not wait.
    from cpudist.doctor import examine

    findings = _hosts(options.hostfile) if options.hostfile else examine()
    failing = any(finding.level == "error" for finding in findings)
    if options.json:
        print(json.dumps({"ok": not failing, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        width = shutil.get_terminal_size().columns
        print("\n".join(line for finding in findings for line in _lines(finding, width)))
    if failing:
        raise SystemExit(1)


def _hosts(path: Path) -> list[Finding]:
    """Return the findings of `cpudist launch` on the hosts of a file."""
    checked = check(read(path))
    return [finding for findings in checked.findings.values() for finding in findings] + [
        Finding("ok", f"{host.where}: {host.name}", f"torch {facts.torch}, {size(facts.memory)} of memory free")
        for host, facts in checked.facts.items()
        if not checked.findings[host]
    ]


def _lines(finding: Finding, width: int) -> list[str]:
    texts = [f"{finding.level:<9}{finding.about}: {finding.message}"]
    if finding.remedy:
        texts.append(f"{' ' * 9}remedy: {finding.remedy}")
    return [line for text in texts for line in _wrapped(text, max(width, 40))]


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text, but not inside paths, so that they can be copied."""
    return textwrap.wrap(text, width, subsequent_indent=" " * 9, break_on_hyphens=False, break_long_words=False)
