"""Faults that `cpudist doctor --hostfile` and `cpudist launch` find before any rank starts; a rank's SIGBUS."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import Bed
from control_group import control_group
from jobs import BIN, launch
from mpis import MPIS, require

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).with_name("checks") / "greets.py"
# Rank 1 uses more shared memory than there is, as a data worker's batches do.
FILLS = """
import mmap, torch.distributed as dist

dist.barrier()
if dist.get_rank() == 1:
    with open("/dev/shm/batch", "wb+") as file:
        file.truncate(256 << 20)
        mmap.mmap(file.fileno(), 0).write(bytes(256 << 20))
dist.barrier()
"""


@pytest.fixture
def three(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), hosts=3) as bed:
        yield bed


def found(bed: Bed) -> dict[str, tuple[str, str, str]]:
    """What doctor finds: the level, message and remedy of a host."""
    result = bed.run("h0", [str(BIN / "cpudist"), "doctor", "--hostfile", bed.hostfile(), "--json"], timeout=100)
    findings = json.loads(result.stdout)["findings"]
    assert len({one["about"] for one in findings}) == len(findings), "one fault gives one finding"
    return {one["about"].split()[-1]: (one["level"], one["message"], one["remedy"]) for one in findings}


def sh(bed: Bed, host: str, command: str) -> None:
    result = bed.run(host, ["sh", "-ec", command], timeout=30)
    assert result.returncode == 0, result.output


_LARGE = "ip link set eth0 mtu 9000; ip route add 10.77.0.10 dev eth0 mtu 1500"  # the switch passes 1500
CUTS = {
    "no route": ({"h2": "ip route add blackhole 10.77.0.11"}, "ip route"),
    "packets get lost": (
        {"h2": "ip neighbour replace 10.77.0.11 lladdr 02:00:00:00:00:01 dev eth0 nud permanent"},
        "ip route",
    ),
    "large packets get lost": ({"h1": _LARGE, "h2": _LARGE}, "mtu 1500"),
}


@pytest.mark.parametrize("cut", CUTS)
def test_two_hosts_that_reach_this_host_but_not_each_other(three: Bed, tmp_path: Path, cut: str) -> None:
    commands, remedy = CUTS[cut]
    for host, command in commands.items():
        sh(three, host, command)
    says = found(three)
    assert (says["h0"][0], says["h1"][0], says["h2"][0]) == ("ok", "ok", "error")
    assert "h1" in says["h2"][1]
    assert remedy in says["h2"][2]
    job = launch("--hostfile", three.hostfile(1), "--", str(SCRIPT), str(tmp_path))
    for words in [job, [str(BIN / "cpudist"), "test", "--hostfile", three.hostfile()]] * (cut == "no route"):
        begin = time.monotonic()
        result = three.run("h0", words, timeout=60)
        assert result.returncode == 2, result.output
        assert time.monotonic() - begin < 40, "10 on a machine that does nothing else"
        (line,) = [line for line in result.report.splitlines() if ": waiting for " not in line]
        assert "line 3: h2 cannot connect to h1 at 10.77.0.11 " in line
    assert not list(tmp_path.iterdir())


def test_a_full_dev_shm(own_bed: Bed, tmp_path: Path) -> None:
    sh(own_bed, "h1", "mount -o remount,size=64M /dev/shm; fallocate -l 62M /dev/shm/other")
    level, message, remedy = found(own_bed)["h1"]
    assert (level, "/dev/shm" in message, "mount" in remedy) == ("error", True, True)
    command = launch("--hostfile", own_bed.hostfile(1), "--", str(SCRIPT), str(tmp_path))
    refused = own_bed.run("h0", command, timeout=60)
    assert refused.returncode == 2, refused.output
    assert "line 2: h1 has 2 MB free in /dev/shm" in refused.report

    sh(own_bed, "h1", "rm /dev/shm/other")
    script = tmp_path / "fills.py"
    script.write_text(FILLS)
    job = launch("--hostfile", own_bed.hostfile(1), "--", "--backend", "gloo", str(script))
    killed = own_bed.run("h0", job, timeout=100)
    assert killed.returncode not in (0, 2), killed.output
    (line,) = [line for line in killed.stderr.splitlines() if "killed by SIGBUS" in line]
    assert "rank 1 on h1 was killed by SIGBUS (/dev/shm there is full?" in line, killed.output


@pytest.mark.parametrize("mpi", MPIS)
def test_hosts_without_ipv4(own_bed: Bed, tmp_path: Path, mpi: str) -> None:
    """MPICH's launcher cannot connect to them."""
    require(mpi)
    own_bed.drop_ipv4()
    command = launch("--hostfile", own_bed.hostfile(1), "--mpi", mpi, "--", str(SCRIPT), str(tmp_path))
    result = own_bed.run("h0", command, timeout=100)
    ranks = {path.name: path.read_text() for path in tmp_path.iterdir()}
    if mpi == "mpich":
        assert (result.returncode, ranks) == (2, {}), result.output
        assert "IPv4" in result.report.splitlines()[-1]
    else:
        assert (result.returncode, ranks) == (0, {"0-0": "h0", "0-1": "h1"}), result.output


def test_a_part_of_a_cpu(own_bed: Bed) -> None:
    with control_group() as group:
        group.limit("cpu", cpu__max="8000 100000", cpu__cfs_quota_us="8000")
        own_bed.join("h1", group)
        says = found(own_bed)
        own_bed.kill("h1")
    assert says["h0"][0] == "ok"
    assert (says["h1"][0], "a quota of 0.08 CPUs" in says["h1"][1]) == ("warning", True)
