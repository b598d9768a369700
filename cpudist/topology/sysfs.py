"""Read the topology that the kernel shows in /sys/devices/system.

https://docs.kernel.org/admin-guide/cputopology.html and .../ABI/stable/sysfs-devices-system-cpu.
"""

import re
from collections.abc import Iterator

from cpudist.errors import UserError
from cpudist.topology import Cpu, NumaNode, Topology, assemble
from cpudist.topology.kernel_files import Files, parse_list, parse_mask

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def read_topology(files: Files) -> Topology:
    """Read the topology of all online CPUs."""
    online = online_cpus(files)
    if not online:
        raise UserError(f"no CPU in /{_CPUS}: mount /sys, or copy all of it")
    nodes = dict(_nodes(files))
    node_of = {cpu: number for number, (_, cpus) in sorted(nodes.items(), reverse=True) for cpu in cpus}
    cpus = [_cpu(files, number, node_of.get(number, 0)) for number in online]
    return assemble(cpus, [NumaNode(number, memory) for number, (memory, _) in nodes.items()])


def online_cpus(files: Files) -> frozenset[int]:
    """Return the CPUs that exist and are switched on."""
    text = files.read(f"{_CPUS}/online")
    if text is not None:
        return parse_list(text)
    return frozenset(  # Copies often lack that file; a CPU that is off has no topology.
        number
        for number in _numbered(files.names(_CPUS), "cpu")
        if files.read(f"{_CPUS}/cpu{number}/online") != "0" and files.names(f"{_CPUS}/cpu{number}/topology")
    )


def _cpu(files: Files, number: int, node: int) -> Cpu:
    topology = f"{_CPUS}/cpu{number}/topology"
    # core_id is unique only within a package, on some machines only within a die. Sibling masks are always correct.
    siblings = _cpus_in(files, f"{topology}/core_cpus") or _cpus_in(files, f"{topology}/thread_siblings")
    package = files.read(f"{topology}/physical_package_id")
    return Cpu(
        number,
        core=min(siblings, default=number),
        socket=max(int(package), 0) if package else 0,  # -1: unknown
        numa_node=node,
        l3=_l3(files, number),
    )


def _l3(files: Files, cpu: int) -> frozenset[int] | None:
    caches = f"{_CPUS}/cpu{cpu}/cache"
    for name in files.names(caches):
        if name.startswith("index") and files.read(f"{caches}/{name}/level") == "3":
            return _cpus_in(files, f"{caches}/{name}/shared_cpu_map") or None
    return None


def _nodes(files: Files) -> Iterator[tuple[int, tuple[int | None, frozenset[int]]]]:
    """Yield each NUMA node's number, memory in bytes, and CPUs."""
    for number in _numbered(files.names(_NODES), "node"):
        node = f"{_NODES}/node{number}"
        total = re.search(r"MemTotal:\s*(\d+) kB", files.read(f"{node}/meminfo") or "")
        yield number, (int(total[1]) * 1024 if total else None, _cpus_in(files, f"{node}/cpumap"))


def _cpus_in(files: Files, path: str) -> frozenset[int]:
    """Read a set of CPUs from a mask file; the copies that hwloc makes lack some of the list files."""
    return parse_mask(files.read(path) or "")


def _numbered(names: list[str], prefix: str) -> list[int]:
    """Return the numbers of cpu0, cpu1, … among `names`."""
    return sorted(int(name[len(prefix) :]) for name in names if re.fullmatch(rf"{prefix}\d+", name))
