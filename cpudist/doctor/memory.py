"""Shared memory, locked memory, huge pages, NUMA balancing."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.machine import sysfs
from cpudist.machine.files import Files
from cpudist.machine.memory_policy import memory_policy

_SHM = "/dev/shm"
# Docker's default of 64 MiB is used up by two MPI ranks, or by one process that loads data; then processes die of
# SIGBUS.
_ENOUGH_SHM = 256 << 20
_LEAST_SHM = 32 << 20


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """What the kernel has been told about memory."""
    yield shared_memory(_free_shm())
    yield from _locked(files)
    yield from _huge_pages(files)
    yield from _balancing(files)
    policy = memory_policy()
    if policy not in (None, "default", "local"):
        yield Finding(
            "warning",
            "memory policy",
            f"this shell's memory policy is {policy}, which ranks inherit: memory may be far from their cores",
            "start the job without numactl --interleave, --membind or --preferred",
        )


def shared_memory(free: int | None) -> Finding:
    """What so many free bytes in /dev/shm (None: it is missing) mean for a job."""
    remedy = "mount more: docker run --shm-size=2g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"
    if free is None:
        return Finding("error", _SHM, f"{_SHM} is missing; MPI and data loading share memory there", remedy)
    size = f"{free / (1 << 20):.0f} MiB free in {_SHM}"
    if free < _LEAST_SHM:
        return Finding("error", _SHM, f"{size}: MPI ranks and data loading would die of SIGBUS", remedy)
    if free < _ENOUGH_SHM:
        return Finding("warning", _SHM, f"{size}: large batches from data-loading processes may die of SIGBUS", remedy)
    return Finding("ok", _SHM, size)


def _free_shm() -> int | None:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _locked(files: Files) -> Iterator[Finding]:
    """Network cards that read memory by themselves need it locked; TCP does not."""
    cards = files.names("sys/class/infiniband")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("ok", "memlock", "any amount of memory may be locked")
    elif not cards:
        yield Finding("ok", "memlock", f"{soft / (1 << 20):.0f} MiB may be locked; without InfiniBand none has to be")
    else:
        yield Finding(
            "warning",
            "memlock",
            f"only {soft / (1 << 20):.0f} MiB of memory may be locked, too little for {cards[0]}: messages go over TCP",
            "ulimit -l unlimited (limits.conf: memlock; slurmd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)",
        )


def _huge_pages(files: Files) -> Iterator[Finding]:
    text = files.read("sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen and chosen[1] == "never":
        yield Finding(
            "warning",
            "huge pages",
            "transparent huge pages are off, so large tensors need more address translation",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    elif chosen:
        yield Finding("ok", "huge pages", f"transparent huge pages: {chosen[1]}")


def _balancing(files: Files) -> Iterator[Finding]:
    on = files.read("proc/sys/kernel/numa_balancing") not in (None, "0")
    nodes = {core.numa_node for core in sysfs.read_topology(files).cores}
    if not on or len(nodes) == 1:
        yield Finding("ok", "NUMA balancing", "off" if not on else "on, but there is one NUMA node: nothing to move")
    else:
        yield Finding(
            "warning",
            "NUMA balancing",
            "the kernel moves pages between NUMA nodes, which ranks that are pinned only pay for",
            "as root: sysctl kernel.numa_balancing=0",
        )
