"""Layouts of real machines (tests/topology/layouts), and what their sources say of them."""

import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpudist.topology.exports import machine_from
from cpudist.topology.machine import Machine

FOLDER = Path(__file__).parents[1] / "topology" / "layouts"


@dataclass(frozen=True)
class Shape:
    """How many of each part; `memory_only` are NUMA nodes without cores, `usable` CPUs."""

    sockets: int
    nodes: int
    l3: int
    cores: int
    cpus: int
    usable: int
    memory_only: int = 0


LAYOUTS = {
    "arm-2s-128c.sysfs.tar.xz": Shape(2, 4, 4, 128, 128, 128),
    "core-i7-1165g7.sysfs.tar.xz": Shape(1, 1, 1, 4, 8, 8),
    "core-i7-12700h-hybrid.lscpu": Shape(1, 1, 1, 14, 20, 20),
    "epyc-7451-2s-nps4.sysfs.tar.xz": Shape(2, 8, 16, 48, 96, 96),
    "epyc-7763-1s-nps4.lscpu": Shape(1, 4, 8, 64, 64, 64),
    "epyc-7t83-2s-nps2.lscpu": Shape(2, 4, 16, 128, 256, 256),
    "epyc-8434p-1s-l3-as-numa.lscpu": Shape(1, 8, 8, 48, 96, 96),
    "epyc-9375f-2s-nps1.lscpu": Shape(2, 2, 16, 64, 64, 64),
    "opteron-4s-sparse-nodes.sysfs.tar.xz": Shape(4, 8, 8, 48, 48, 48),
    "opteron-6134-4s-cgroup2.sysfs.tar.xz": Shape(4, 8, 8, 32, 32, 32),
    "power-1-core.sysfs.tar.xz": Shape(1, 1, 1, 1, 1, 1),
    "power9-2s-gpu-memory.sysfs.tar.xz": Shape(2, 2, 4, 8, 32, 32, memory_only=6),
    "snapdragon-8-gen-2.sysfs.tar.xz": Shape(3, 1, 3, 8, 8, 8),
    "threadripper-3960x-nps4.lscpu": Shape(1, 4, 8, 24, 48, 48),
    "xeon-2s-8c2t.sysfs.tar.xz": Shape(2, 2, 2, 16, 32, 32),
    "xeon-4s-offline.hwloc2.xml": Shape(4, 1, 4, 6, 7, 7),
    "xeon-4s-offline.sysfs.tar.xz": Shape(4, 1, 4, 7, 12, 12),
    "xeon-6418h-4s.lscpu": Shape(4, 4, 4, 96, 96, 96),
    "xeon-8480-2s-snc4.lscpu": Shape(2, 8, 8, 112, 224, 224),
    "xeon-phi-snc4-hbm.hwloc2.xml": Shape(1, 4, 4, 16, 64, 64, memory_only=4),
    "xeon-x7550-4s.sysfs.tar.xz": Shape(4, 3, 4, 32, 64, 64),
}


@cache
def machine_of(name: str) -> Machine:
    if not name.endswith(".tar.xz"):
        return machine_from(FOLDER / name)
    with tempfile.TemporaryDirectory() as folder:
        unpack(name, Path(folder))
        return machine_from(Path(folder))


def unpack(name: str, folder: Path) -> None:
    """Unpack an archive of FOLDER; Python before 3.11.4 has no filters, and the archives are our own."""
    with tarfile.open(FOLDER / name) as archive:
        archive.extraction_filter = lambda member, path: member
        archive.extractall(folder)


def format_mask(cpus: Iterable[int]) -> str:
    """CPUs as one hexadecimal number, as Intel MPI, Slurm and the kernel read it."""
    return hex(sum(1 << cpu for cpu in set(cpus)))
