"""Read another machine from a file: a copy of sysfs, the output of ``lscpu -p`` (util-linux), or hwloc's XML.

hwloc's XML (``lstopo --of xml``, versions 2 and 3) names the CPUs and memory nodes of each object by bit masks. Objects
are matched by these masks, because the tree of objects differs between the versions.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpudist.errors import UserError
from cpudist.topology import Cpu, NumaNode, Topology, assemble, sysfs
from cpudist.topology.kernel_files import LAST_CPU, Files, parse_mask
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine

_LARGEST = 64 << 20  # bytes; real descriptions have some kilobytes
_CPUS = "sys/devices/system/cpu"
# The default columns of `lscpu -p`, used if the output has no header.
_COLUMNS = ["cpu", "core", "socket", "node", "", "l1d", "l1i", "l2", "l3"]

_Element = ElementTree.Element


def machine_from(path: Path) -> Machine:
    """Read another machine from a file: a copy of sysfs (a folder), ``lscpu -p``, or hwloc's XML.

    Only hwloc's XML has limits: the CPUs that lstopo was allowed to use.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; give a copy of sysfs, the output of `lscpu -p`, or hwloc's XML")
    if not path.is_dir() and not (path.is_file() and path.stat().st_size < _LARGEST):
        raise UserError(f"{path} describes no machine: give a folder, or a file of less than 64 MB")
    try:
        machine = _from_copy(path) if path.is_dir() else _from_text(path)
        if (last := max(machine.topology.cpus)) > LAST_CPU:
            raise UserError(f"it names a CPU {last}, which no machine has: make it again")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return machine


def _from_copy(path: Path) -> Machine:
    """Read a folder `sys`, or a folder that contains it directly or at most two folders deeper."""
    path = path.absolute()
    roots = [path.parent] if path.name == "sys" else [path, *sorted(path.glob("*")), *sorted(path.glob("*/*"))]
    found = next((root for root in roots if (root / _CPUS).is_dir()), None)
    if found is None:
        raise UserError(f"it holds no {_CPUS}: copy the machine's /sys/devices/system")
    try:
        return Machine(sysfs.read_topology(Files(found)), Limits())
    except ValueError as error:
        raise UserError(f"it holds a file that the kernel does not write ({error}): copy it again") from None


def _from_text(path: Path) -> Machine:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"it cannot be read as text ({error}): make it again, or unpack it (tar xf)") from None
    if text.lstrip().startswith("<"):
        topology, allowed = parse_hwloc(text)
        return Machine(topology, Limits(cpus=allowed))
    return Machine(parse_lscpu(text), Limits())


def parse_lscpu(text: str) -> Topology:
    """Read the output of ``lscpu -p`` or ``lscpu -p=…`` with the columns CPU and CORE at least.

    The size of the memory stays unknown. If a column is missing or empty, one socket, one NUMA node, or one L3 cache
    per node is assumed. Offline CPUs, which ``-a`` and ``-c`` add, are skipped.
    """
    rows = [row for row in _rows(text) if row.get("core") and row.get("online", "y").lower() in ("y", "")]
    try:
        cpus = [_cpu(row) for row in rows]
    except (KeyError, ValueError):
        raise UserError("this is not the output of `lscpu -p`, numbers with commas between: make it again") from None
    if not cpus:
        raise UserError("this output lists no CPU: make it with `lscpu -p`")
    return assemble(cpus)


def _rows(text: str) -> Iterator[dict[str, str]]:
    columns = _COLUMNS
    for line in text.splitlines():
        fields = [field.strip() for field in line.lstrip("# ").replace(":", ",").split(",")]
        if line.startswith("#"):
            if "cpu" in (names := [field.lower() for field in fields]):
                columns = names
        elif line.strip():
            yield {name: value for name, value in zip(columns, fields, strict=False) if name}


def _cpu(row: dict[str, str]) -> Cpu:
    return Cpu(
        int(row["cpu"]),
        # On some Arm machines core numbers repeat in a socket; threads of one core share its L1 cache.
        core=(int(row["core"]), row.get("l1d")),
        socket=int(row.get("socket") or 0),
        numa_node=int(row.get("node") or 0),
        l3=row.get("l3") or None,
    )


def parse_hwloc(text: str) -> tuple[Topology, frozenset[int]]:
    """Read hwloc's XML; return the machine, and the CPUs that lstopo was allowed to use."""
    try:
        return _parse_objects(ElementTree.fromstring(text))
    except ElementTree.ParseError as error:
        raise UserError(f"this XML is broken ({error}): export it again with `lstopo --of xml FILE`") from None
    except ValueError as error:
        raise UserError(f"this XML has a value that hwloc does not write ({error}): export it again") from None


def _parse_objects(root: _Element) -> tuple[Topology, frozenset[int]]:
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
    memory = {_number(node): node.get("local_memory") for node in nodes}
    topology = assemble(cpus, [NumaNode(node, None if size is None else int(size)) for node, size in memory.items()])
    allowed = _mask(objects[0].get("allowed_cpuset"))
    return topology, topology.cpus if allowed is None else topology.cpus & allowed


def _owners(objects: Iterable[_Element], kind: str) -> dict[int, _Element]:
    """Return for each CPU the object of this type that it belongs to."""
    return {number: item for item in objects if item.get("type") == kind for number in _mask(item.get("cpuset")) or ()}


def _node_of(unit: _Element, nodes: Iterable[_Element]) -> int:
    """Return the NUMA node of a CPU. If it has several, return the first: the others are memory only (HBM, CXL)."""
    near = _mask(unit.get("complete_nodeset")) or _mask(unit.get("nodeset"))
    holding = (_number(node) for node in nodes if _number(unit) in (_mask(node.get("cpuset")) or ()))
    return min(near or holding, default=0)


def _number(item: _Element) -> int:
    return int(item.get("os_index", "-1"))


def _mask(text: str | None) -> frozenset[int] | None:
    """Return a set of CPUs or nodes; None if it is not given, or is infinite."""
    return None if text is None or re.search(r"f\.\.\.f", text) else parse_mask(text)
