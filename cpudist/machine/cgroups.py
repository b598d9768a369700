"""The control groups that this process is in, of version 1, version 2 or both at once (docs.kernel.org/admin-guide).

A limit holds for a group and all below it, so the smallest one on the way up to the root counts. Inside a container
the way ends at the container's own root; what holds above it cannot be seen, except for cpusets, which the kernel
applies to the affinity mask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from cpudist.machine.cpulist import parse_list
from cpudist.machine.files import Files

_Number = TypeVar("_Number", int, float)

# File systems: versions 1 and 2, and cpusets as they were before cgroups.
_KINDS = ("cgroup", "cgroup2", "cpuset")

_NO_LIMIT = 1 << 60  # version 1 says "no limit" with a number close to 2**63


@dataclass(frozen=True)
class Throttling:
    """How often a CPU quota has stopped the processes of a group, out of so many periods."""

    periods: int
    throttled: int


@dataclass(frozen=True)
class Cgroup:
    """What the groups of a process allow; None is no limit. `quota` is CPU seconds for each second, `memory` bytes."""

    cpus: frozenset[int] | None = None
    quota: float | None = None
    memory: int | None = None
    throttling: Throttling | None = None


def read_cgroup(files: Files) -> Cgroup:
    """What limits the process; no cgroups at all are no limit."""
    cpu = list(_folders(files, "cpu"))
    return Cgroup(
        cpus=_cpus(files, list(_folders(files, "cpuset"))),
        quota=_least(files, cpu, _quota),
        memory=_least(files, list(_folders(files, "memory")), _memory),
        throttling=next((found for folder in cpu if (found := _throttling(files, folder))), None),
    )


def _folders(files: Files, controller: str) -> Iterator[str]:
    """The folders of the groups that this controller has the process in, from its own one upwards."""
    for mount, options, root in _mounts(files):
        path = _paths(files).get(controller if options is not None else "")
        if path is None or (options is not None and controller not in options):
            continue
        # Where only a part of the hierarchy is mounted (a container without a namespace), paths count from there.
        inner = path.removeprefix(root) if root != "/" and path.startswith(root) else path
        parts = [part for part in inner.split("/") if part]
        if ".." in parts or not files.names("/".join([mount, *parts])):
            parts = []
        for depth in range(len(parts), -1, -1):
            yield "/".join([mount, *parts[:depth]])


def _mounts(files: Files) -> Iterator[tuple[str, set[str] | None, str]]:
    """Each mounted hierarchy: its folder, its controllers (None for version 2), and what of it is mounted."""
    text = files.read("proc/self/mountinfo")
    if text is None:  # copies have the older file
        for line in (files.read("proc/mounts") or "").splitlines():
            fields = line.split()
            if len(fields) > 3 and fields[2] in _KINDS:
                yield fields[1].lstrip("/"), _controllers(fields[2], fields[3]), "/"
        return
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        if kind in _KINDS:
            fields = before.split()
            yield fields[4].lstrip("/"), _controllers(kind, options), fields[3]


def _controllers(kind: str, options: str) -> set[str] | None:
    return {"cgroup2": None, "cpuset": {"cpuset"}}.get(kind, set(options.split(",")))


def _paths(files: Files) -> dict[str, str]:
    """The process's group for each controller of version 1, and under "" that of version 2."""
    paths = {}
    for line in (files.read("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    # A copy may have the group's path alone, which is the same in all hierarchies of a scheduler.
    if not paths and (path := files.read("proc/self/cpuset") or ""):
        paths = dict.fromkeys(("", "cpuset", "cpu", "memory"), path)
    return paths


def _cpus(files: Files, folders: list[str]) -> frozenset[int] | None:
    for folder in folders:  # what is effective stands in the group itself
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus"):
            if text := files.read(f"{folder}/{name}"):
                return parse_list(text)
    return None


def _quota(files: Files, folder: str) -> float | None:
    if text := files.read(f"{folder}/cpu.max"):
        quota, period = [*text.split(), "100000"][:2]
    else:
        quota = files.read(f"{folder}/cpu.cfs_quota_us") or "-1"
        period = files.read(f"{folder}/cpu.cfs_period_us") or "100000"
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)


def _memory(files: Files, folder: str) -> int | None:
    text = files.read(f"{folder}/memory.max") or files.read(f"{folder}/memory.limit_in_bytes")
    return None if not text or text == "max" or int(text) >= _NO_LIMIT else int(text)


def _least(files: Files, folders: list[str], read: Callable[[Files, str], _Number | None]) -> _Number | None:
    found = [value for folder in folders if (value := read(files, folder)) is not None]
    return min(found, default=None)


def _throttling(files: Files, folder: str) -> Throttling | None:
    text = files.read(f"{folder}/cpu.stat") or ""
    counts = {name: int(value) for name, value in re.findall(r"^(nr_\w+) (\d+)$", text, re.MULTILINE)}
    if "nr_periods" not in counts:
        return None
    return Throttling(counts["nr_periods"], counts.get("nr_throttled", 0))
