"""Topologies of real machines from each source, and what other programs say of the same machines."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import FOLDER, LAYOUTS, Shape, machine_of, unpack

from cpudist.errors import UserError
from cpudist.topology import Cpu, NumaNode, Topology, assemble, sysfs
from cpudist.topology.exports import machine_from, parse_hwloc, parse_lscpu
from cpudist.topology.kernel_files import Files, format_list, parse_mask
from cpudist.topology.machine import Machine, this_machine

COPIES = [name for name in LAYOUTS if name.endswith(".tar.xz")]


def test_defaults_where_a_source_says_little(tmp_path: Path) -> None:
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
    without_nodesets = infinite.replace("</t", '<object type="NUMANode" os_index="1" cpuset="0x2"/></t')
    assert [core.numa_node for core in parse_hwloc(without_nodesets)[0].cores] == [0, 1]
    assert parse_lscpu("0,0\n1,1\n") == expected


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
    assert parse_hwloc(done.stdout)[0] == machine_from(tmp_path).topology


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
