"""Describe the machine on which ranks are placed: its topology, a process's limits on it, and its processor."""

import os
import platform
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from cpudist.topology import Topology, sysfs
from cpudist.topology.kernel_files import Files
from cpudist.topology.limits import Limits, read_limits

# CPU features with arithmetic in bfloat16 and in float16: the kernel's name (x86, Arm) -> the name in messages.
BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "bf16": "Arm's BF16", "svebf16": "SVE BF16"}
FLOAT16 = {"amx_fp16": "AMX", "avx512_fp16": "AVX512_FP16", "fphp": "Arm's FP16"}

_ROOT = Files()


@dataclass(frozen=True)
class Machine:
    """A machine's online CPUs, and the limits of a process on it."""

    topology: Topology
    limits: Limits

    @property
    def usable(self) -> Topology:
        cpus = self.limits.cpus
        return self.topology if cpus is None else self.topology.restricted_to(cpus)


def this_machine(env: Mapping[str, str] = os.environ) -> Machine:
    """Return this machine and the limits of this process. The topology is read once for each process."""
    return Machine(_own_topology(), read_limits(_ROOT, frozenset(os.sched_getaffinity(0)), env))


@cache  # a rank needs it twice, and it takes 40 ms for 128 CPUs
def _own_topology() -> Topology:
    return sysfs.read_topology(_ROOT)


def allowed_cpus() -> list[int]:
    """Return the numbers of the logical CPUs that this process may run on, in ascending order."""
    return sorted(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it, or the architecture where it gives none (on Arm)."""
    lines = (_ROOT.read("proc/cpuinfo") or "").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def clock_of(cpu: int) -> float | None:
    """Return the clock of a CPU in Hz; None where the kernel does not report it, as in most virtual machines."""
    kilohertz = _ROOT.read(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
    return None if kilohertz is None or not kilohertz.strip().isdecimal() else 1000.0 * int(kilohertz)


def features(files: Files) -> frozenset[str] | None:
    """Return the features of this machine's processors; None where the kernel does not list them."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", files.read("proc/cpuinfo") or "", re.MULTILINE)
    return None if found is None else frozenset(found[1].split())


def units(features: frozenset[str], number_format: dict[str, str]) -> list[str]:
    """Return the names of the CPU features that compute in `number_format`, which is `BFLOAT16` or `FLOAT16`."""
    return [name for feature, name in number_format.items() if feature in features]


def cpu_quota() -> float | None:
    """Return the CPU quota of this container, in CPUs; None without a limit."""
    return read_limits(_ROOT, None, {}).quota


def cores_to_spare(
    own: Iterable[int], everyone: Collection[Collection[int]], threads: int, quota: float | None = None
) -> int:
    """Return how many CPUs a process's computing threads leave unused; negative if there are fewer CPUs than threads.

    Args:
        own: the CPUs that this process may use. Processes with the same CPUs (no pinning) share them evenly.
        everyone: the CPUs of every process of the job on this machine, this process included.
        quota: the CPU quota that all these processes share, in CPUs; None without a limit.
    """
    users = Counter(cpu for cpus in everyone for cpu in cpus)
    share = sum(1 / users[cpu] for cpu in own)
    if quota is not None:
        share = min(share, quota / len(everyone))
    return int(share + 1e-9) - threads
