"""Any machine is read as it is from each of its descriptions: sysfs, hwloc's XML, `lscpu -p`."""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from hypothesis import given
from hypothesis import strategies as st
from layouts import format_mask

from cpudist.topology import Cpu, NumaNode, Topology, assemble, hwloc, lscpu, sysfs
from cpudist.topology.cpulist import format_list
from cpudist.topology.kernel_files import Files
from cpudist.topology.machine import BFLOAT16, features, units


@dataclass(frozen=True)
class Described:
    """CPUs that are online, one that is not, and NUMA nodes with their memory, of which one may have no CPU."""

    cpus: tuple[Cpu, ...]
    offline: int
    nodes: tuple[NumaNode, ...]

    @property
    def topology(self) -> Topology:
        """Return the machine that is described."""
        return assemble(self.cpus, self.nodes)

    def sharing(self, part: str) -> Iterator[tuple[int, frozenset[int]]]:
        """Yield each CPU with the CPUs that share its core, socket, NUMA node or L3 cache."""
        for cpu in self.cpus:
            yield cpu.number, frozenset(one.number for one in self.cpus if getattr(one, part) == getattr(cpu, part))


@st.composite
def described(draw: st.DrawFn) -> Described:
    places = [
        (socket, node, cache, core)
        for socket in range(draw(st.integers(1, 2)))
        for node in range(draw(st.integers(1, 2)))
        for cache in range(draw(st.integers(1, 2)))
        for core in range(draw(st.integers(1, 2)))
        for _thread in range(draw(st.integers(1, 2)))
    ]
    numbers = draw(st.permutations(range(1, len(places) + 1)))
    cpus = tuple(
        Cpu(number, (socket, node, cache, core), socket, 2 * socket + node, (socket, node, cache))
        for number, (socket, node, cache, core) in zip(numbers, places, strict=True)
    )
    nodes = {*(cpu.numa_node for cpu in cpus), *draw(st.sets(st.just(5)))}
    return Described(cpus, 0, tuple(NumaNode(node, draw(st.integers(1, 2**31)) * 1024) for node in sorted(nodes)))


def write_sysfs(machine: Described, folder: Path, *, lists_online: bool, old_names: bool) -> None:
    """Write the files of a machine as the kernel has them."""

    def write(name: str, text: object) -> None:
        path = folder / "sys/devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def mask(cpus: Iterable[int]) -> str:
        return f"00000000,{sum(1 << cpu for cpu in cpus):08x}"

    if lists_online:
        write("cpu/online", format_list(cpu.number for cpu in machine.cpus))
    write(f"cpu/cpu{machine.offline}/online", 0)
    write(f"cpu/cpu{machine.offline}/topology/core_cpus", mask([machine.offline]))
    write("cpu/cpufreq/boost", 1)
    for number, cpus in machine.sharing("core"):
        write(f"cpu/cpu{number}/topology/{'thread_siblings' if old_names else 'core_cpus'}", mask(cpus))
    for number, cpus in machine.sharing("l3"):
        write(f"cpu/cpu{number}/cache/index2/level", 2)
        write(f"cpu/cpu{number}/cache/index2/shared_cpu_map", mask([number]))
        write(f"cpu/cpu{number}/cache/index3/level", 3)
        write(f"cpu/cpu{number}/cache/index3/shared_cpu_map", mask(cpus))
        write(f"cpu/cpu{number}/cache/uevent", "")
    for cpu in machine.cpus:
        write(f"cpu/cpu{cpu.number}/topology/physical_package_id", cpu.socket)
    for node in machine.nodes:
        near = [cpu.number for cpu in machine.cpus if cpu.numa_node == node.number]
        write(f"node/node{node.number}/cpumap", mask(near))
        memory = f"Node {node.number} MemTotal: {node.memory // 1024} kB\nNode {node.number} MemFree: 1 kB"
        write(f"node/node{node.number}/meminfo", memory)


def as_xml(machine: Described, names_nodes: bool) -> str:
    """Return what `lstopo --of xml` writes of a machine, in one level."""

    def item(kind: str, **attributes: object) -> str:
        given = " ".join(f"{name}={quoteattr(str(value))}" for name, value in attributes.items())
        return f'<object type="{kind}" {given}/>'

    everything = [*(cpu.number for cpu in machine.cpus), machine.offline]
    allowed = format_mask(cpu.number for cpu in machine.cpus[:1])
    online = format_mask(cpu.number for cpu in machine.cpus)
    lines = [item("Machine", cpuset=online, allowed_cpuset=allowed, complete_cpuset=format_mask(everything))]
    for node in machine.nodes:
        near = format_mask(cpu.number for cpu in machine.cpus if cpu.numa_node == node.number)
        lines.append(item("NUMANode", os_index=node.number, cpuset=near, local_memory=node.memory))
    for kind, part in (("Package", "socket"), ("L3Cache", "l3"), ("Core", "core")):
        index = {cpu.number: cpu.socket if kind == "Package" else cpu.number for cpu in machine.cpus}
        lines += [item(kind, os_index=index[cpu], cpuset=format_mask(cpus)) for cpu, cpus in machine.sharing(part)]
    for cpu in machine.cpus:
        nodeset = {"complete_nodeset": format_mask([cpu.numa_node])} if names_nodes else {}
        lines.append(item("PU", os_index=cpu.number, cpuset=format_mask([cpu.number]), **nodeset))
    lines.append(item("PU", os_index=machine.offline, cpuset=format_mask([machine.offline])))
    return f'<topology version="2.0">{"".join(lines)}</topology>'


@given(machine=described(), lists_online=st.booleans(), old_names=st.booleans())
def test_from_sysfs(machine: Described, lists_online: bool, old_names: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_sysfs(machine, Path(folder), lists_online=lists_online, old_names=old_names)
        assert sysfs.read_topology(Files(Path(folder))) == machine.topology


@given(machine=described(), names_nodes=st.booleans())
def test_from_hwlocs_xml(machine: Described, names_nodes: bool) -> None:
    topology, allowed = hwloc.parse_machine(as_xml(machine, names_nodes))
    assert topology == machine.topology
    assert allowed == {machine.cpus[0].number}


@given(machine=described())
def test_from_lscpu(machine: Described) -> None:
    head = "# The following is the parsable format.\n# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n"
    keys = {part: [getattr(cpu, part) for cpu in machine.cpus] for part in ("core", "l3")}
    lines = []
    for cpu in machine.cpus:
        core, l3 = (keys[part].index(getattr(cpu, part)) for part in ("core", "l3"))
        lines.append(f"{cpu.number},{core},{cpu.socket},{cpu.numa_node},,{core},{core},{core},{l3}\n")
    assert lscpu.parse_topology(head + "".join(lines)) == assemble(machine.cpus)


def test_a_machine_that_says_little_is_one_socket_one_node_and_one_l3_group(tmp_path: Path) -> None:
    expected = assemble([Cpu(0, 0), Cpu(1, 1)], [NumaNode(0)])
    for cpu in (0, 1):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("-1\n")
    assert sysfs.read_topology(Files(tmp_path)) == expected
    (tmp_path / "sys/devices/system/node/node0").mkdir(parents=True)
    assert sysfs.read_topology(Files(tmp_path)) == expected
    units_alone = '<object type="PU" os_index="0"/><object type="PU" os_index="1"/>'
    infinite = f'<topology version="2"><object cpuset="0xf...f"/>{units_alone}</topology>'
    for xml in (infinite, infinite.replace('cpuset="0xf...f"', "")):
        assert hwloc.parse_machine(xml) == (assemble([Cpu(0, 0), Cpu(1, 1)]), {0, 1})
    assert lscpu.parse_topology("0,0\n1,1\n") == expected


def test_the_units_that_compute_in_a_format(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert features(Files(tmp_path)) is None
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu amx_bf16\nflags\t\t: other\n")
    found = features(Files(tmp_path))
    assert found == {"fpu", "amx_bf16"}
    assert units(found, BFLOAT16) == ["AMX"]
