"""The threads of this process as the kernel shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cpudist.machine.cpulist import parse_list

# The fields of /proc/…/stat after the name, counted from 0: proc_pid_stat(5).
_USER_TICKS, _SYSTEM_TICKS, _PROCESSOR = 11, 12, 36


@dataclass(frozen=True)
class Task:
    """One thread: the kernel's number of it, its name, the CPU time that it has used, in clock ticks, the CPUs that it
    may run on, and the one that it last ran on."""

    number: int
    name: str
    ticks: int
    mask: frozenset[int]
    cpu: int


def tasks() -> list[Task]:
    """The threads that are there now."""
    return [thread for task in Path("/proc/self/task").iterdir() if (thread := _read(task))]


def _read(task: Path) -> Task | None:
    """None if the thread has ended."""
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        status = (task / "status").read_text()
        name = (task / "comm").read_text().strip()
    except OSError:
        return None
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    mask = parse_list(allowed[1]) if allowed else frozenset()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Task(int(task.name), name, ticks, mask, int(fields[_PROCESSOR]))
