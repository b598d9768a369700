"""What of the machine this process may use: CPUs, CPU time and memory.

CPUs are limited by the affinity mask and by cgroup cpusets (a container, a Slurm job, a pod with whole CPUs), CPU
time by cgroup quotas (`docker run --cpus`, a pod's `limits.cpu`), memory by cgroups. Kubernetes limits by cgroups
alone; Slurm may count CPUs and memory without enforcing it, which its variables tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpudist.machine.cgroups import Cgroup, read_cgroup
from cpudist.machine.cpulist import parse_list
from cpudist.machine.files import Files


@dataclass(frozen=True)
class Limits:
    """What this process may use; None is no limit.

    Attributes:
        cpus: the CPUs on which it may run.
        quota: CPU time, in seconds for each second: 1.5 is one and a half CPUs' worth, on whichever CPUs.
        counted: how many CPUs (hardware threads) Slurm has given to this job step on this node.
        memory: bytes, for all ranks of the node together.
        origins: what limits, for people, such as "a CPU quota of 1.5".
    """

    cpus: frozenset[int] | None = None
    quota: float | None = None
    counted: int | None = None
    memory: int | None = None
    origins: tuple[str, ...] = field(default=(), compare=False)


def read_limits(files: Files, affinity: frozenset[int] | None, env: Mapping[str, str]) -> Limits:
    """The limits of the process that `files` is about.

    Args:
        files: this machine's, or a copy.
        affinity: the process's mask; None reads it from the copy, if it is there.
        env: the variables that Slurm has set, if it did.
    """
    if affinity is None:
        affinity = _affinity(files)
    cgroup = read_cgroup(files)
    sets = [cpus for cpus in (affinity, cgroup.cpus) if cpus]
    return Limits(
        cpus=frozenset.intersection(*sets) if sets else None,
        quota=cgroup.quota,
        counted=slurm_cpus(env),
        memory=min((limit for limit in (cgroup.memory, slurm_memory(env)) if limit is not None), default=None),
        origins=tuple(_origins(cgroup, slurm_cpus(env))),
    )


def slurm_cpus(env: Mapping[str, str] = os.environ) -> int | None:
    """How many CPUs Slurm has given to this step on this node; None where Slurm did not start it."""
    text = env.get("SLURM_CPUS_ON_NODE", "") if "SLURM_JOB_ID" in env else ""
    return int(text) if text.isdigit() and int(text) > 0 else None


def slurm_memory(env: Mapping[str, str] = os.environ) -> int | None:
    """How many bytes Slurm has given to this job on this node, whether or not it enforces that; None if it did not say.

    sbatch(1): --mem sets SLURM_MEM_PER_NODE and --mem-per-cpu SLURM_MEM_PER_CPU, in MiB; 0 is all of the node's.
    """
    if "SLURM_JOB_ID" not in env:
        return None
    per_node, per_cpu = (env.get(name, "") for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"))
    if per_node.isdecimal():
        return (int(per_node) << 20) or None
    return (int(per_cpu) * (slurm_cpus(env) or 1) << 20) or None if per_cpu.isdecimal() else None


def _affinity(files: Files) -> frozenset[int] | None:
    for line in (files.read("proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_list(line.partition(":")[2])
    return None


def _origins(cgroup: Cgroup, counted: int | None) -> list[str]:
    origins = []
    if cgroup.quota is not None:
        origins.append(f"a CPU quota of {cgroup.quota:g}")
    if counted is not None:
        origins.append(f"Slurm's count of {counted} CPU{'' if counted == 1 else 's'}")
    return origins
