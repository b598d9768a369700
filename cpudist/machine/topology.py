"""The parts of a machine that decide where ranks compute: sockets, NUMA nodes, L3 groups, cores, hardware threads.

These are the types that every source (sysfs, lscpu, hwloc) fills by `assemble`. The numbers of CPUs, sockets and NUMA
nodes are those of the operating system.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Core:
    """One physical core.

    Attributes:
        cpus: its hardware threads, ascending; more than one with SMT.
        socket, numa_node: where it lies.
        l3: which cores share a last-level cache with it; counts from 0 over the machine. A group never spans NUMA
            nodes, also where the cache does.
        efficiency: whether it is one of the slower cores of a hybrid processor.
    """

    cpus: tuple[int, ...]
    socket: int
    numa_node: int
    l3: int
    efficiency: bool = False


@dataclass(frozen=True)
class NumaNode:
    """A part of the memory, with the cores that are near it; a node without cores is memory only (HBM, CXL)."""

    number: int
    memory: int | None = None  # bytes; None where the source does not say


@dataclass(frozen=True)
class Topology:
    """A machine, or what of it may be used. Cores are in the order socket, NUMA node, L3 group, first CPU."""

    cores: tuple[Core, ...]
    numa_nodes: tuple[NumaNode, ...]

    @property
    def cpus(self) -> frozenset[int]:
        """All hardware threads."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    @property
    def threads_per_core(self) -> int:
        """Hardware threads of the core that has most."""
        return max((len(core.cpus) for core in self.cores), default=1)

    def restricted_to(self, cpus: Collection[int]) -> Topology:
        """The same machine with only these CPUs; cores that keep none are gone."""
        kept = (replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu in cpus)) for core in self.cores)
        return replace(self, cores=tuple(core for core in kept if core.cpus))

    def numa_node_of(self, cpus: Collection[int]) -> int | None:
        """The number of the NUMA node that all these CPUs are in; None where they are in several, or it has none of
        them."""
        nodes = {core.numa_node for core in self.restricted_to(cpus).cores}
        return nodes.pop() if len(nodes) == 1 else None

    def with_cores(self, cores: Collection[Core]) -> Topology:
        """The same machine with only these of its cores."""
        return replace(self, cores=tuple(core for core in self.cores if core in cores))


@dataclass(frozen=True)
class Cpu:
    """What a source says of one hardware thread. `core` and `l3` are any keys that are equal for what is shared.

    None is what the source does not say: then all CPUs of a NUMA node count as one L3 group.
    """

    number: int
    core: Hashable
    socket: int = 0
    numa_node: int = 0
    l3: Hashable | None = None
    efficiency: bool = False


def assemble(cpus: Iterable[Cpu], numa_nodes: Iterable[NumaNode] = ()) -> Topology:
    """Put CPUs together to cores, and cores in order. NUMA nodes that are not listed are added, their memory
    unknown."""
    siblings: dict[Hashable, list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.number):
        siblings.setdefault((cpu.socket, cpu.numa_node, cpu.core), []).append(cpu)
    # The L3 groups are numbered by their lowest CPU.
    groups: dict[Hashable, int] = {}
    cores = []
    for threads in siblings.values():
        first = threads[0]
        l3 = groups.setdefault((first.socket, first.numa_node, first.l3), len(groups))
        numbers = tuple(cpu.number for cpu in threads)
        cores.append(Core(numbers, first.socket, first.numa_node, l3, first.efficiency))
    cores.sort(key=lambda core: (core.socket, core.numa_node, core.l3, core.cpus))
    nodes = {node.number: node for node in numa_nodes}
    for core in cores:
        nodes.setdefault(core.numa_node, NumaNode(core.numa_node))
    return Topology(tuple(cores), tuple(nodes[number] for number in sorted(nodes)))
