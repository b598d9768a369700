"""Topologies of drawn and of real machines from each source, and what other programs say of the same machines."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import FOLDER, LAYOUTS, Shape, draw_places, format_mask, machine_of, unpack

from cpudist.errors import UserError
from cpudist.topology import Cpu, NumaNode, Topology, assemble, sysfs
from cpudist.topology.cpulist import format_list, parse_mask
from cpudist.topology.exports import machine_from, parse_hwloc, parse_lscpu
from cpudist.topology.kernel_files import Files
from cpudist.topology.machine import BFLOAT16, Machine, features, this_machine, units

COPIES = [name for name in LAYOUTS if name.endswith(".tar.xz")]


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
    places = draw_places(draw, 2, 2, 2, 2)
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


def as_table(machine: Described) -> str:
    """Return what `lscpu -p` writes of a machine, which has no memory there."""
    keys = {part: [getattr(cpu, part) for cpu in machine.cpus] for part in ("core", "l3")}
    lines = ["# The following is the parsable format.", "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3"]
    for cpu in machine.cpus:
        core, l3 = (keys[part].index(getattr(cpu, part)) for part in ("core", "l3"))
        lines.append(f"{cpu.number},{core},{cpu.socket},{cpu.numa_node},,{core},{core},{core},{l3}")
    return "\n".join(lines)


@given(machine=described(), lists_online=st.booleans(), old_names=st.booleans(), names_nodes=st.booleans())
def test_each_source(machine: Described, lists_online: bool, old_names: bool, names_nodes: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_sysfs(machine, Path(folder), lists_online=lists_online, old_names=old_names)
        assert sysfs.read_topology(Files(Path(folder))) == machine.topology
    assert parse_hwloc(as_xml(machine, names_nodes)) == (machine.topology, {machine.cpus[0].number})
    assert parse_lscpu(as_table(machine)) == assemble(machine.cpus)


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
        assert parse_hwloc(xml) == (assemble([Cpu(0, 0), Cpu(1, 1)]), {0, 1})
    assert parse_lscpu("0,0\n1,1\n") == expected


def test_the_units_that_compute_in_a_format(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert features(Files(tmp_path)) is None
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu amx_bf16\nflags\t\t: other\n")
    found = features(Files(tmp_path))
    assert found == {"fpu", "amx_bf16"}
    assert units(found, BFLOAT16) == ["AMX"]


def shape(machine: Machine) -> Shape:
    topology = machine.topology
    nodes = {core.numa_node for core in topology.cores}
    return Shape(
        sockets=len({core.socket for core in topology.cores}),
        nodes=len(nodes),
        l3=len({core.l3 for core in topology.cores}),
        cores=len(topology.cores),
        cpus=len(topology.cpus),
        usable=len(machine.usable.cpus),
        memory_only=len({node.number for node in topology.numa_nodes} - nodes),
    )


def where(topology: Topology) -> list[tuple[tuple[int, ...], int, int]]:
    """Each core's CPUs, socket and NUMA node."""
    return sorted((core.cpus, core.socket, core.numa_node) for core in topology.cores)


@pytest.mark.parametrize(("name", "expected"), LAYOUTS.items())
def test_layout(name: str, expected: Shape) -> None:
    assert shape(machine_of(name)) == expected


@pytest.mark.job
@pytest.mark.parametrize("name", COPIES)
def test_hwloc_says_the_same_of_a_copy_of_sysfs(name: str, tmp_path: Path) -> None:
    if shutil.which("lstopo") is None:
        pytest.skip("lstopo (Debian: hwloc) is not installed")
    unpack(name, tmp_path)
    (tmp_path / "proc").mkdir(exist_ok=True)  # hwloc wants one
    command = ["lstopo", "--input", str(tmp_path), "--if", "fsroot", "--whole-system", "--of", "xml", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    theirs, _ = parse_hwloc(done.stdout)
    ours = machine_from(tmp_path).topology
    assert where(ours) == where(theirs)
    assert {core.numa_node for core in ours.cores} == {core.numa_node for core in theirs.cores}
    memory = {node.number: node.memory for node in ours.numa_nodes if node.memory}
    assert memory == {node.number: node.memory for node in theirs.numa_nodes if node.number in memory}


@pytest.mark.job
def test_this_machine_as_lscpu_sees_it() -> None:
    table = subprocess.run(["lscpu", "-p"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert where(parse_lscpu(table)) == where(this_machine().topology)


def test_the_folder_sys_of_a_copy_is_found(tmp_path: Path) -> None:
    unpack("xeon-2s-8c2t.sysfs.tar.xz", tmp_path / "node1")
    expected = where(machine_of("xeon-2s-8c2t.sysfs.tar.xz").topology)
    for folder in (tmp_path, tmp_path / "node1", tmp_path / "node1" / "sys"):
        assert where(machine_from(folder).topology) == expected


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(set(LAYOUTS) - set(COPIES))), data=st.data())
def test_a_damaged_file_is_a_machine_or_one_line(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Files that were cut off, or in which something was changed or put in."""
    content = (FOLDER / name).read_bytes()
    begin = data.draw(st.integers(0, len(content)), "begin")
    end = data.draw(st.just(begin) | st.just(len(content)) | st.integers(begin, min(begin + 9, len(content))), "end")
    put_in = data.draw(st.text('0123456789-,xf<"\n\0', max_size=20), "put in")
    file = tmp_path / "file"
    file.write_bytes(content[:begin] + put_in.encode() + content[end:])
    with contextlib.suppress(UserError):
        assert machine_from(file).topology.cores


def test_what_is_no_topology_is_one_line_that_names_it(tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    broken = copy / "sys/devices/system/cpu"
    broken.mkdir(parents=True)
    other.mkdir()
    places = [(copy, "no CPU"), (other, "holds no sys/devices/system/cpu"), (tmp_path / "none", "does not exist")]
    texts = {
        b"": "lscpu -p",
        b"# CPU,Core\n0,x\n": "lscpu -p",
        b"0,0,0,0\n99999999999,1,0,0\n": "which no machine has",
        b"\x7fELF\xff\xfe\x00": "cannot be read as text",
        b"<topology>": "broken",
        b"<topology><object/></topology>": "lstopo --of xml",
        b"<html></html>": "not that of hwloc 2 or 3",
        b'<topology version="2.0"><object type="PU" os_index="x"/></topology>': "does not write",
    }
    for number, (text, named) in enumerate(texts.items()):
        (tmp_path / f"file{number}").write_bytes(text)
        places.append((tmp_path / f"file{number}", named))
    for place, named in [*places, (FOLDER / COPIES[0], "unpack it")]:
        with pytest.raises(UserError, match=named) as error:
            machine_from(place)
        assert str(place) in str(error.value)
    (broken / "online").write_text("0-x\n")
    with pytest.raises(UserError, match="copy it again"):
        machine_from(copy)


def test_lscpu_with_other_columns_and_offline_cpus() -> None:
    table = "# Core,CPU,Online,Socket\n0,0,Y,0\n0,1,N,0\n1,2,Y,1\n,3,N,\n"
    topology = parse_lscpu(table)
    assert where(topology) == [((0,), 0, 0), ((2,), 1, 0)]


def test_lists_and_masks() -> None:
    assert parse_mask("00000001,00000000,80000001") == {0, 31, 64}
    assert parse_mask("0x1,,0xf") == {64, 0, 1, 2, 3}
    assert format_list([5, 1, 0, 2]) == "0-2,5"
