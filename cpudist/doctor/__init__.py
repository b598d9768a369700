"""Check the installed packages, and what a job would use or miss on this machine; each problem has its remedy.

Each file has one group of checks; they only read. This package must not import jobs, transformers or command lines.
"""

import os

from cpudist.doctor import libraries, resources, usable_backends, versions
from cpudist.errors import UserError
from cpudist.findings import LEVELS, Finding
from cpudist.topology.kernel_files import Files

__all__ = ["Finding", "examine"]

_GROUPS = (versions, usable_backends, resources, libraries)  # Findings of one level are shown in this order.


def examine() -> list[Finding]:
    """Run all checks on this machine and return their findings, errors first."""
    findings = []
    for group in _GROUPS:
        try:
            findings += group.check(Files(), os.environ)
        except UserError as error:
            findings.append(Finding("error", group.__name__.rpartition(".")[2], str(error)))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
