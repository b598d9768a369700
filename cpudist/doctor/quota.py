"""What control groups and masks leave to this process, and whether a quota has stopped it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.machine import sysfs
from cpudist.machine.cgroups import Throttling, read_cgroup
from cpudist.machine.cpulist import format_list
from cpudist.machine.files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """CPUs, CPU quota and memory limit of this process."""
    cgroup = read_cgroup(files)
    if cgroup.throttling and cgroup.throttling.throttled:
        yield _stopped(cgroup.throttling)
    if cgroup.quota is not None:
        yield _quota(cgroup.quota)
    online, own = sysfs.online_cpus(files), frozenset(os.sched_getaffinity(0))
    some = "all" if own == online else f"{format_list(own)} of"
    yield Finding("ok", "CPUs", f"this process may use {some} {len(online)} CPUs")
    if cgroup.memory is not None:
        yield Finding(
            "ok", "memory limit", f"{cgroup.memory / (1 << 30):.1f} GiB for all ranks of this container together"
        )


def _quota(quota: float) -> Finding:
    threads = max(int(quota), 1)
    what = f"a quota of {quota:g} CPUs: the ranks get {threads} computing threads together"
    if quota == threads:
        return Finding("ok", "CPU quota", what)
    return Finding("warning", "CPU quota", what, "ask for a whole number of CPUs: a part of one is not used")


def _stopped(throttling: Throttling) -> Finding:
    share = throttling.throttled / max(throttling.periods, 1)
    return Finding(
        "warning",
        "throttling",
        f"the CPU quota has stopped this container in {share:.0%} of {throttling.periods} periods (nr_throttled)",
        "start fewer threads (cpudist plan counts them by the quota), or raise the quota (limits.cpu, docker --cpus)",
    )
