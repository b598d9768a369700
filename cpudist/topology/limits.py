"""The part of the machine that this process may use: CPUs, CPU time and memory.

CPUs are limited by the affinity mask and by cgroup cpusets (a container, a Slurm job, a pod with whole CPUs), CPU time
by cgroup quotas (`docker run --cpus`, a pod's `limits.cpu`), memory by cgroups. Slurm may assign CPUs without enforcing
the limit; its variables then give the number of CPUs.

Control groups of version 1, version 2 or both at once are read (docs.kernel.org/admin-guide). A limit holds for a group
and all groups below it, so the smallest limit of the group and its parents applies. A container shows no groups above
its own root. Their limits are invisible, except for cpusets, which the kernel applies to the affinity mask.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cpudist.console import number_of
from cpudist.topology.kernel_files import Files, parse_list

_Number = TypeVar("_Number", int, float)

_KINDS = ("cgroup", "cgroup2")  # file systems of versions 1 and 2
_NO_LIMIT = 1 << 60  # version 1 writes a number close to 2**63 for "no limit"


@dataclass(frozen=True)
class Limits:
    """The resources that a process may use; None if there is no limit."""

    cpus: frozenset[int] | None = None  # the CPUs on which it may run
    # CPU time in seconds per second, summed over all CPUs; 1.5 is the time of one and a half CPUs.
    quota: float | None = None
    # Number of CPUs that Slurm has given to this job step on this node. They are cores with
    # `--hint=nomultithread`, otherwise hardware threads.
    counted: int | None = None
    memory: int | None = None  # bytes for all ranks of the node together

    @property
    def origins(self) -> tuple[str, ...]:
        """The limits on the number of computing threads as text, such as "a CPU quota of 1.5"."""
        quota = () if self.quota is None else (f"a CPU quota of {self.quota:g}",)
        counted = () if self.counted is None else (f"Slurm's count of {number_of(self.counted, 'CPU')}",)
        return quota + counted


def read_limits(files: Files, affinity: frozenset[int] | None, env: Mapping[str, str]) -> Limits:
    """Read the limits of the process that `files` describes, whose mask is `affinity` (None: unknown).

    A missing control group sets no limit.
    """
    sets = [cpus for cpus in (affinity, _cpuset(files)) if cpus]
    return Limits(
        cpus=frozenset.intersection(*sets) if sets else None,
        quota=_least(_quota(files, group) for group in _groups(files, "cpu")),
        counted=_least([_slurm_cpus(env), _slurm_cores(env)]),
        memory=_least(_memory(files, group) for group in _groups(files, "memory")),
    )


def _slurm_cpus(env: Mapping[str, str]) -> int | None:
    """Return how many CPUs Slurm has given to this step on this node; None if Slurm did not start it."""
    text = env.get("SLURM_CPUS_ON_NODE", "") if "SLURM_JOB_ID" in env else ""
    return int(text) if text.isdigit() and int(text) > 0 else None


def _slurm_cores(env: Mapping[str, str]) -> int | None:
    """Return the cores of this step's tasks on a node if each core runs one hardware thread; otherwise None.

    With --hint=nomultithread, SLURM_CPUS_ON_NODE is a number of hardware threads and SLURM_CPUS_PER_TASK a number of
    cores (Slurm 22.05).
    """
    tasks = re.match(r"[1-9]\d*", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    per_task = env.get("SLURM_CPUS_PER_TASK", "")
    if env.get("SLURM_THREADS_PER_CORE") != "1" or tasks is None or not per_task.isdecimal():
        return None
    return int(tasks[0]) * int(per_task) or None


def _groups(files: Files, controller: str) -> Iterator[str]:
    """Yield the folders of this process's control groups for a controller, from its own group up to the root."""
    paths = _paths(files)
    for mount, controllers, root in _mounts(files):
        path = paths.get(controller if controllers is not None else "")
        if path is None or (controllers is not None and controller not in controllers):
            continue
        # If only a subtree is mounted (a container without a cgroup namespace), the path is made relative to it.
        inner = path.removeprefix(root) if root != "/" and path.startswith(root) else path
        parts = [part for part in inner.split("/") if part]
        if ".." in parts or not files.names("/".join([mount, *parts])):
            parts = []
        for depth in range(len(parts), -1, -1):
            yield "/".join([mount, *parts[:depth]])


def _mounts(files: Files) -> Iterator[tuple[str, set[str] | None, str]]:
    """Yield each mounted hierarchy: its folder, its controllers (None for version 2), and the mount's root."""
    for line in (files.read("proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        if kind in _KINDS:
            fields = before.split()
            yield fields[4].lstrip("/"), None if kind == "cgroup2" else set(options.split(",")), fields[3]


def _paths(files: Files) -> dict[str, str]:
    """Return the process's version 1 group for each controller, and its version 2 group under the key ""."""
    paths = {}
    for line in (files.read("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _cpuset(files: Files) -> frozenset[int] | None:
    for group in _groups(files, "cpuset"):  # the file of the process's own group has the effective set
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := files.read(f"{group}/{name}"):
                return parse_list(text)
    return None


def _quota(files: Files, group: str) -> float | None:
    if text := files.read(f"{group}/cpu.max"):
        quota, period = [*text.split(), "100000"][:2]
    else:
        quota = files.read(f"{group}/cpu.cfs_quota_us") or "-1"
        period = files.read(f"{group}/cpu.cfs_period_us") or "100000"
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)


def _memory(files: Files, group: str) -> int | None:
    text = files.read(f"{group}/memory.max") or files.read(f"{group}/memory.limit_in_bytes")
    return None if not text or text == "max" or int(text) >= _NO_LIMIT else int(text)


def _least(values: Iterable[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)
