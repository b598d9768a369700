"""Topologies of real machines from every source, and what other programs say of the same machines."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import FOLDER, LAYOUTS, Shape, machine_of, unpack

from cpudist.errors import UserError
from cpudist.topology import Topology, hwloc, lscpu, sysfs
from cpudist.topology.cpulist import format_list, parse_list, parse_mask
from cpudist.topology.kernel_files import Files
from cpudist.topology.machine import Machine, machine_from, this_machine

COPIES = [name for name in LAYOUTS if name.endswith(".tar.xz")]


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


def lstopo(*arguments: str) -> str:
    """What hwloc itself says, as XML."""
    if shutil.which("lstopo") is None:
        pytest.skip("lstopo (Debian: hwloc) is not installed")
    command = ["lstopo", *arguments, "--of", "xml", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.job
@pytest.mark.parametrize("name", COPIES)
def test_hwloc_says_the_same_of_a_copy_of_sysfs(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    (tmp_path / "proc").mkdir(exist_ok=True)  # hwloc wants one
    theirs, _ = hwloc.parse_machine(lstopo("--input", str(tmp_path), "--if", "fsroot", "--whole-system"))
    ours = machine_from(tmp_path).topology
    assert where(ours) == where(theirs)
    assert {core.numa_node for core in ours.cores} == {core.numa_node for core in theirs.cores}
    memory = {node.number: node.memory for node in ours.numa_nodes if node.memory}
    assert memory == {node.number: node.memory for node in theirs.numa_nodes if node.number in memory}


@pytest.mark.job
def test_this_machine_as_lscpu_and_hwloc_see_it() -> None:
    ours = this_machine().topology
    table = subprocess.run(["lscpu", "-p"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert where(lscpu.parse_topology(table)) == where(ours)
    for _try in range(10):  # the memory of a virtual machine may grow between two looks
        before = sysfs.read_topology(Files())
        theirs, _ = hwloc.parse_machine(lstopo("--whole-system"))
        if sysfs.read_topology(Files()) == before:
            break
    assert where(theirs) == where(ours)
    assert [node.memory for node in theirs.numa_nodes] == [node.memory for node in before.numa_nodes]


def test_the_folder_sys_of_a_copy_is_found(tmp_path: Path) -> None:
    unpack("xeon-2s-8c2t.sysfs.tar.xz", tmp_path / "node1")
    expected = where(machine_of("xeon-2s-8c2t.sysfs.tar.xz").topology)
    for folder in (tmp_path, tmp_path / "node1", tmp_path / "node1" / "sys"):
        assert where(machine_from(folder).topology) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "lscpu -p"),
        ("no table", "lscpu -p"),
        ("# CPU,Core\n0,x\n", "lscpu -p"),
        ("<topology><object/></topology>", "lstopo --of xml"),
        ("<topology>", "broken"),
        ("<html></html>", "not that of hwloc 2 or 3"),
        ('<topology version="2.0"><object type="PU" os_index="x"/></topology>', "does not write"),
        ("0,0,0,0\n99999999999,1,0,0\n", "which no machine has"),
    ],
)
def test_what_is_no_topology_is_one_line(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(UserError, match=expected) as error:
        machine_from(file)
    assert str(file) in str(error.value)


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


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        machine_from(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds no sys/devices/system/cpu"):
        machine_from(tmp_path)
    cpu = tmp_path / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    with pytest.raises(UserError, match="no CPU"):
        machine_from(tmp_path)
    (cpu / "online").write_text("0-x\n")
    with pytest.raises(UserError, match="copy it again"):
        machine_from(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read as text"):
        machine_from(tmp_path / "binary")
    with pytest.raises(UserError, match="unpack it"):
        machine_from(FOLDER / COPIES[0])


def test_lscpu_with_other_columns_and_offline_cpus() -> None:
    table = "# Core,CPU,Online,Socket\n0,0,Y,0\n0,1,N,0\n1,2,Y,1\n,3,N,\n"
    topology = lscpu.parse_topology(table)
    assert where(topology) == [((0,), 0, 0), ((2,), 1, 0)]


def test_lists_and_masks() -> None:
    assert parse_list("0-2,5\n") == {0, 1, 2, 5}
    assert parse_list("") == frozenset()
    assert parse_mask("00000001,00000000,80000001") == {0, 31, 64}
    assert parse_mask("0x1,,0xf") == {64, 0, 1, 2, 3}
    assert format_list([5, 1, 0, 2]) == "0-2,5"
