"""Shared memory, locked memory, huge pages, NUMA balancing and the memory policy."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping

from cpudist.console import size
from cpudist.errors import Finding
from cpudist.pinning.threads import memory_policy
from cpudist.topology import sysfs
from cpudist.topology.kernel_files import Files

_SHM = "/dev/shm"
# Two MPI ranks, or one process that loads data, use up Docker's default of 64 MB; then processes die of SIGBUS.
_ENOUGH_SHM = 256 << 20
_LEAST_SHM = 32 << 20


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the kernel's settings for memory."""
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
    """Check the free bytes in /dev/shm; None: it is missing."""
    remedy = "mount more: docker run --shm-size=2g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"
    if free is None:
        return Finding("error", _SHM, f"{_SHM} is missing; MPI and data loading share memory there", remedy)
    what = f"{size(free)} free in {_SHM}"
    if free < _LEAST_SHM:
        return Finding("error", _SHM, f"{what}: MPI ranks and data loading would die of SIGBUS", remedy)
    if free < _ENOUGH_SHM:
        return Finding("warning", _SHM, f"{what}: large batches from data-loading processes may die of SIGBUS", remedy)
    return Finding("ok", _SHM, what)


def _free_shm() -> int | None:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _locked(files: Files) -> Iterator[Finding]:
    """Check locked memory: network cards with direct memory access need it, TCP does not."""
    cards = files.names("sys/class/infiniband")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("ok", "memlock", "any amount of memory may be locked")
    elif not cards:
        yield Finding("ok", "memlock", f"{size(soft)} may be locked; without InfiniBand none has to be")
    else:
        yield Finding(
            "warning",
            "memlock",
            f"only {size(soft)} of memory may be locked, too little for {cards[0]}: messages go over TCP",
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
        yield Finding("ok", "NUMA balancing", "off" if not on else "on, but there is only one NUMA node")
    else:
        yield Finding(
            "warning",
            "NUMA balancing",
            "the kernel unmaps pages to see which NUMA node uses them, which only costs pinned ranks time",
            "as root: sysctl kernel.numa_balancing=0",
        )
