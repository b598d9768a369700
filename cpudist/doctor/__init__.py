"""What is installed, what a job would use, and what stands in its way, each finding with its remedy.

One file for each group of checks; a check looks and changes nothing. It must not know jobs, transformers or command
lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cpudist.doctor import backend, clock, libraries, memory, network, processor, quota, versions, xla
from cpudist.doctor.finding import LEVELS, Finding
from cpudist.errors import UserError
from cpudist.machine.files import Files, Folder

__all__ = ["Finding", "examine"]

# In the order in which their findings matter, within one level.
_GROUPS = (versions, network, backend, xla, memory, quota, libraries, processor, clock)


def examine(files: Files | None = None, env: Mapping[str, str] = os.environ) -> list[Finding]:
    """Run all checks on this machine; the most important findings come first."""
    files = files or Folder(Path("/"))
    findings = []
    for group in _GROUPS:
        try:
            findings += group.check(files, env)
        except UserError as error:
            findings.append(Finding("error", group.__name__.rpartition(".")[2], str(error)))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
