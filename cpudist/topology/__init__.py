"""This process's machine, its limits and its addresses.

Sockets, NUMA nodes and CPUs have the operating system's numbers. This package changes nothing. It must not import
torch, MPI or launchers.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Core:
    """One physical core."""

    cpus: tuple[int, ...]  # its hardware threads, ascending; more than one with SMT
    socket: int
    numa_node: int
    # Number of its L3 group, counted from 0 over the machine. The cores of a group share the last-level cache and the
    # NUMA node; a cache that spans several nodes counts as several groups.
    l3: int


@dataclass(frozen=True)
class NumaNode:
    """A part of the memory, and the cores near it; a node without cores is memory only (HBM, CXL)."""

    number: int
    memory: int | None = None  # bytes; None: unknown


@dataclass(frozen=True)
class Topology:
    """A machine, or the usable part of it. Cores are sorted by socket, NUMA node, L3 group and first CPU."""

    cores: tuple[Core, ...]
    numa_nodes: tuple[NumaNode, ...]

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    def restricted_to(self, cpus: Collection[int]) -> Self:
        """Return the same machine with only these CPUs. Cores without any of them are dropped."""
        kept = (replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in cpus)) for core in self.cores)
        return replace(self, cores=tuple(core for core in kept if core.cpus))


@dataclass(frozen=True)
class Cpu:
    """One hardware thread as sysfs, lscpu or hwloc describes it.

    CPUs of one core have the same `core`, and CPUs of one L3 cache the same `l3`. If `l3` is None, all CPUs of a NUMA
    node form one group.
    """

    number: int
    core: Hashable
    socket: int = 0
    numa_node: int = 0
    l3: Hashable | None = None


def assemble(cpus: Iterable[Cpu], numa_nodes: Iterable[NumaNode] = ()) -> Topology:
    """Combine CPUs into cores, and sort the cores. NUMA nodes that are not listed are added, with unknown memory."""
    siblings: dict[Hashable, list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.number):
        siblings.setdefault((cpu.socket, cpu.numa_node, cpu.core), []).append(cpu)
    groups: dict[Hashable, int] = {}  # The L3 groups are numbered in the order of their lowest CPUs.
    cores = []
    for threads in siblings.values():
        first = threads[0]
        l3 = groups.setdefault((first.socket, first.numa_node, first.l3), len(groups))
        numbers = tuple(cpu.number for cpu in threads)
        cores.append(Core(numbers, first.socket, first.numa_node, l3))
    cores.sort(key=lambda core: (core.socket, core.numa_node, core.l3, core.cpus))
    nodes = {node.number: node for node in numa_nodes}
    for core in cores:
        nodes.setdefault(core.numa_node, NumaNode(core.numa_node))
    return Topology(tuple(cores), tuple(nodes[number] for number in sorted(nodes)))
