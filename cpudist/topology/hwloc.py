"""Read the topology from hwloc's XML (``lstopo --of xml``), versions 2 and 3.

Each object names its CPUs and its memory nodes by bit masks. Only the masks are used, because the tree of objects
differs between the versions.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable

from cpudist.errors import UserError
from cpudist.topology import Cpu, NumaNode, Topology, assemble
from cpudist.topology.cpulist import parse_mask

_Element = ElementTree.Element


def parse_machine(text: str) -> tuple[Topology, frozenset[int]]:
    """Read hwloc's XML; return the machine, and the CPUs that lstopo was allowed to use."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UserError(f"this XML is broken ({error}): export it again with `lstopo --of xml FILE`") from None
    try:
        return _parse(root)
    except ValueError as error:
        raise UserError(f"this XML has a value that hwloc does not write ({error}): export it again") from None


def _parse(root: _Element) -> tuple[Topology, frozenset[int]]:
    objects = list(root.iter("object"))
    units = [unit for unit in objects if unit.get("type") == "PU"]
    if root.tag != "topology" or not units or not root.get("version"):
        raise UserError("this XML is not that of hwloc 2 or 3, or has no CPU: export it with `lstopo --of xml FILE`")
    packages = _owners(objects, "Package")
    cores = _owners(objects, "Core")
    caches = _owners(objects, "L3Cache")
    nodes = [node for node in objects if node.get("type") == "NUMANode"]
    online = _mask(objects[0].get("cpuset"))
    cpus = []
    for unit in units:
        number = _number(unit)
        if online is None or number in online:
            package, core, cache = packages.get(number), cores.get(number), caches.get(number)
            cpus.append(
                Cpu(
                    number,
                    core=number if core is None else core.get("cpuset"),
                    socket=0 if package is None else max(_number(package), 0),
                    numa_node=_node_of(unit, nodes),
                    l3=None if cache is None else cache.get("cpuset"),
                )
            )
    topology = assemble(cpus, [NumaNode(_number(node), _memory(node)) for node in nodes])
    allowed = _mask(objects[0].get("allowed_cpuset"))
    return topology, topology.cpus if allowed is None else topology.cpus & allowed


def _owners(objects: Iterable[_Element], kind: str) -> dict[int, _Element]:
    """Return for each CPU the object of this type that it belongs to."""
    return {number: item for item in objects if item.get("type") == kind for number in _mask(item.get("cpuset")) or ()}


def _node_of(unit: _Element, nodes: Iterable[_Element]) -> int:
    """Return the NUMA node of a CPU. If it has several, return the first: the others are memory only (HBM, CXL)."""
    near = _mask(unit.get("complete_nodeset")) or _mask(unit.get("nodeset"))
    if near:
        return min(near)
    holding = [_number(node) for node in nodes if _number(unit) in (_mask(node.get("cpuset")) or ())]
    return min(holding, default=0)


def _memory(node: _Element) -> int | None:
    memory = node.get("local_memory")
    return None if memory is None else int(memory)


def _number(item: _Element) -> int:
    return int(item.get("os_index", "-1"))


def _mask(text: str | None) -> frozenset[int] | None:
    """Return a set of CPUs or nodes; None if it is not given, or is infinite."""
    return None if text is None or re.search(r"f\.\.\.f", text) else parse_mask(text)
