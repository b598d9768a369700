"""The process that started this node's ranks (torchrun's agent, Hydra's proxy, slurmstepd), and its CPUs.

A rank whose mask is smaller than its launcher's has been pinned by it; where they are equal, all ranks share it. The
parent process alone does not tell: between launcher and rank there may be shells and wrappers, which are of the rank.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MOST = 64  # ancestors; nobody has so many


@dataclass(frozen=True)
class Launcher:
    """The launcher's affinity mask, and its environment as it was started; None where it may not be read."""

    cpus: frozenset[int]
    variables: dict[str, str] | None


def find_launcher(rank_variable: str | None) -> Launcher:
    """The nearest ancestor without this rank's `rank_variable`, such as PMI_RANK; the parent where there is none."""
    own = os.environ.get(rank_variable) if rank_variable else None
    process = os.getppid()
    for _ in range(_MOST):
        variables = _variables(process)
        if own is None or variables is None or variables.get(str(rank_variable)) != own or process <= 1:
            break
        process = _parent(process)
    return Launcher(_cpus(process), variables)


def _variables(process: int) -> dict[str, str] | None:
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, as slurmstepd
        return None
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


def _parent(process: int) -> int:
    try:
        # The name, in brackets, may hold anything.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _cpus(process: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(process))
    except OSError:  # it has ended, or is hidden: then what this process has is all that is known
        return frozenset(os.sched_getaffinity(0))
