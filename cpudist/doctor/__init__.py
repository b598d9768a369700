"""What is installed, what a job would use, and what stands in its way; each finding has its remedy.

One file for each group of checks. A check changes nothing. It must not know jobs, transformers or command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cpudist.doctor import backend, libraries, memory, network, processor, quota, versions
from cpudist.doctor.finding import LEVELS, Finding
from cpudist.errors import UserError
from cpudist.topology.files import Files

__all__ = ["Finding", "examine"]

# The most important ones first, within one level.
_GROUPS = (versions, network, backend, memory, quota, libraries, processor)


def examine(files: Files | None = None, env: Mapping[str, str] = os.environ) -> list[Finding]:
    """Run all checks and return their findings, errors first.

    Args:
        files: the kernel's files of the machine; this machine's by default.
        env: the environment variables that a job would have.
    """
    files = files or Files()
    findings = []
    for group in _GROUPS:
        try:
            findings += group.check(files, env)
        except UserError as error:
            findings.append(Finding("error", group.__name__.rpartition(".")[2], str(error)))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
