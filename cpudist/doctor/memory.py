"""Check shared memory, locked memory and the memory policy."""

import os
import resource
import shutil
from collections.abc import Iterator, Mapping

from cpudist.console import size
from cpudist.errors import Finding
from cpudist.pinning.threads import memory_policy
from cpudist.topology.kernel_files import Files

_SHM = "/dev/shm"
# Two MPI ranks, or one process that loads data, use up Docker's default of 64 MB; then processes die of SIGBUS.
_ENOUGH_SHM = 256 << 20
_LEAST_SHM = 32 << 20


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    yield shared_memory(free_shared_memory())
    yield from _locked(files)
    policy = memory_policy()
    if policy not in (None, "default", "local"):
        message = f"this shell's memory policy is {policy}, which ranks inherit: memory may be far from their cores"
        remedy = "start the job without numactl --interleave, --membind or --preferred"
        yield Finding("warning", "memory policy", message, remedy)


def free_shared_memory() -> int | None:
    """Return the free bytes in /dev/shm; None if it is missing."""
    return shutil.disk_usage(_SHM).free if os.path.isdir(_SHM) else None


def shared_memory(free: int | None) -> Finding:
    """Check the free bytes in /dev/shm; None: it is missing."""
    more = f"mount -o remount,size=2G {_SHM}; docker run --shm-size=2g; in Kubernetes a memory volume"
    remedy = f"delete what fills it, or mount more: {more}"
    if free is None:
        return Finding("error", _SHM, f"no {_SHM}, in which MPI and data loading share memory", remedy)
    what = f"{size(free)} free in {_SHM}"
    if free < _LEAST_SHM:
        return Finding("error", _SHM, f"{what}: MPI ranks and data loading would die of SIGBUS", remedy)
    if free < _ENOUGH_SHM:
        return Finding("warning", _SHM, f"{what}: large batches from data-loading processes may die of SIGBUS", remedy)
    return Finding("ok", _SHM, what)


def _locked(files: Files) -> Iterator[Finding]:
    """Check locked memory: network cards with direct memory access need it, TCP does not."""
    cards = files.names("sys/class/infiniband")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if cards and soft != resource.RLIM_INFINITY:
        message = f"only {size(soft)} of memory may be locked, too little for {cards[0]}: messages go over TCP"
        remedy = (
            "ulimit -l unlimited (limits.conf: memlock; slurmd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)"
        )
        yield Finding("warning", "memlock", message, remedy)
