"""Check the CPUs, number formats, shared memory and locked memory that a job gets here."""

import os
import resource
import shutil
from collections.abc import Iterator, Mapping

from cpudist.console import number_of, size
from cpudist.findings import Finding
from cpudist.topology import sysfs
from cpudist.topology.kernel_files import Files, format_list
from cpudist.topology.limits import read_limits
from cpudist.topology.machine import BFLOAT16, FLOAT16, features, units

_SHM = "/dev/shm"
# Two MPI ranks, or one process that loads data, use up Docker's default of 64 MB; then processes die of SIGBUS.
_ENOUGH_SHM = 256 << 20
_LEAST_SHM = 32 << 20


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    limits = read_limits(files, frozenset(os.sched_getaffinity(0)), env)
    yield quota(limits.quota)
    online, own = sysfs.online_cpus(files), limits.cpus or frozenset()
    some = "all" if own == online else f"{format_list(own)} of"
    counted = f", of which Slurm has given {limits.counted} to this job" if limits.counted else ""
    yield Finding("ok", "CPUs", f"this process may use {some} {len(online)} CPUs{counted}")
    if limits.memory is not None:
        yield Finding("ok", "memory limit", f"{size(limits.memory)} for all ranks of this node together")
    yield from _number_formats(files)
    yield shared_memory(free_shared_memory())
    yield from _locked(files)


def quota(cpus: float | None) -> Finding:
    """Check the CPU quota of this process, in CPUs; None: there is none."""
    if cpus is None:
        return Finding("ok", "CPU quota", "none")
    threads = max(int(cpus), 1)
    what = f"a quota of {cpus:g} CPUs: the ranks together get {number_of(threads, 'computing thread')}"
    if cpus == threads:
        return Finding("ok", "CPU quota", what)
    if cpus < 1:
        what += f", which may run for {cpus:.0%} of the time"
    return Finding("warning", "CPU quota", what, "give a whole number of CPUs (limits.cpu, docker --cpus, CPUQuota)")


def _number_formats(files: Files) -> Iterator[Finding]:
    found = features(files)
    if found is None:
        message = "/proc/cpuinfo does not list the features of this CPU"
        yield Finding("warning", "CPU", message, "compare --bf16 with float32")
    elif bfloat16 := units(found, BFLOAT16):
        float16 = units(found, FLOAT16)
        also = f"; float16 by {' and '.join(float16)}" if float16 else "; no float16"
        yield Finding("ok", "CPU", f"bfloat16 by {' and '.join(bfloat16)}: --bf16 is faster than float32{also}")
    else:
        message = "this CPU has no bfloat16 arithmetic (AVX512_BF16, AMX): --bf16 would be slower than float32"
        yield Finding("warning", "CPU", message, "train in float32")


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
        remedy = "ulimit -l unlimited (limits.conf: memlock; slurmd: LimitMEMLOCK=infinity; docker: memlock=-1)"
        yield Finding("warning", "memlock", message, remedy)
