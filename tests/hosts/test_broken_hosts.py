"""`cpudist test` names the broken one of several hosts in the expected words, and finds nothing on whole hosts."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

import jobs
import pytest
from bed import Bed
from control_group import control_group
from mpis import mpirun_on

import cpudist.version
from cpudist.doctor.versions import installed

pytestmark = [pytest.mark.job, pytest.mark.long, pytest.mark.usefixtures("possible")]

_RATE, _BURST = "100mbit", "32kb"  # of a whole link; a larger burst hides a limit from short messages
_OWN_LINES = r"^cpudist\w*: (?!checking |connecting |starting |\d+ ranks on |completed )(.*)$"


@dataclass(frozen=True)
class Fault:
    """A way to break hosts.

    Attributes:
        broken: names of the broken hosts, with spaces.
        says: what must be said of each broken host, a regular expression with {} for its name.
        commands: of a shell on a host, in the folder that the hosts work in.
        hosts: number of hosts.
        launched: whether `cpudist launch` starts the ranks, or the user's mpirun.
        interface: which one `cpudist test` is told to use.
        link: rate of the broken host's link.
        confined: whether the broken host has so few CPUs that it is slow although all hosts share a busy machine.
    """

    broken: str
    says: str
    commands: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 3
    launched: bool = True
    interface: str = ""
    link: str = _RATE
    confined: bool = False


def sending(rate: str, interface: str = "eth0") -> str:
    return f"tc qdisc replace dev {interface} root tbf rate {rate} burst {_BURST} latency 20ms\n"


def closed(verdict: str = "drop") -> str:
    """A firewall that lets in nothing new at free ports."""
    return f"""
        nft add table inet wall
        nft 'add chain inet wall in {{ type filter hook input priority 0; }}'
        nft add rule inet wall in iif lo accept
        nft add rule inet wall in ct state established,related accept
        nft add rule inet wall in tcp dport 1024-65535 {verdict}
    """


def version(file: str | Path, line: str) -> str:
    """Another version of a package: this line in one of its files."""
    start = line.partition("0.0.1")[0]
    return f"sed 's/^{start}.*/{line}/' {file} > /run/version; mount --bind /run/version {file}"


_TO_H3 = f"""
    tc qdisc replace dev eth0 root handle 1: htb default 1
    tc class add dev eth0 parent 1: classid 1:1 htb rate {_RATE}
    tc class add dev eth0 parent 1: classid 1:2 htb rate 15mbit ceil 15mbit
    tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.77.0.13 flowid 1:2
"""
_ETH1 = (
    "ip link add eth1 link eth0 type macvlan mode bridge; ip address add 10.88.0.1{}/24 dev eth1; ip link set eth1 up\n"
)
_SECOND = {f"h{number}": _ETH1.format(number) for number in range(3)}
_WRONG = "sed 's/^[0-9.]* h0$/10.77.0.99 h0/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"
_OWN = "mount -t tmpfs tmpfs $PWD"
_NONE = "mkdir /run/empty; mount --bind /run/empty ${PWD%/*}"
_SMALL = "mount -o remount,size=64M /dev/shm; fallocate -l 32M /dev/shm/other"
_CPUDIST = version(cpudist.version.__file__, '__version__ = "0.0.1"')
_METADATA = str(distribution("torch").locate_file(f"torch-{installed('torch')}.dist-info/METADATA"))
_TORCH = version(_METADATA, "Version: 0.0.1")
_SLOW = r"{}: has 0\.\d+ of the others' speed in float32.*quota of 0.06"
_CLOSED, _AWAY = "{} does not let this host connect to its free ports", "{} cannot connect to this host at "

FAULTS = {  # tests/hosts/test_faults.py has more of them: a slow link, no route, interfaces that lead nowhere
    "slow link, mpirun": Fault("h0", "{}: sends and receives at", link="25mbit", hosts=4, launched=False),
    "slow sending": Fault("h1", "{}: sends at", {"h1": sending("20mbit")}),
    "slow pair": Fault("h1", r"{} to h3: \d+", {"h1": _TO_H3}, hosts=4),
    "quota": Fault("h2", _SLOW, confined=True),
    "closed ports": Fault("h1", _CLOSED, {"h1": closed()}),
    "closed ports, mpirun": Fault("h1", "cpudist doctor --hostfile", {"h1": closed()}, launched=False),
    "closed ports of the first host": Fault("h1 h2", _AWAY, {"h0": closed()}),
    "refused ports": Fault("h2", _CLOSED, {"h2": closed("reject with tcp reset")}),
    "no eth1": Fault("h2", "{} has no network interface eth1", {**_SECOND, "h2": "true"}, interface="eth1"),
    "slow eth1": Fault(
        "h2", "{}: sends", {**_SECOND, "h2": _SECOND["h2"] + sending("15mbit", "eth1")}, interface="eth1"
    ),
    "wrong address": Fault("h2", _AWAY, {"h2": _WRONG}),
    "little /dev/shm, mpirun": Fault("h0", "{}: has .* free in /dev/shm", {"h0": _SMALL}, hosts=4, launched=False),
    "other cpudist": Fault("h1", "{} has cpudist 0.0.1", {"h1": _CPUDIST}),
    "other cpudist, mpirun": Fault("h2", "{}: has cpudist 0.0.1", {"h2": _CPUDIST}, hosts=4, launched=False),
    "other torch": Fault("h2", "{} has torch 0.0.1", {"h2": _TORCH}),
    "folders of their own": Fault("h1 h2", "{}: does not share", {"h1": _OWN, "h2": _OWN}, hosts=4),
    "no folder": Fault("h2", "{} has no folder", {"h2": _NONE}),
}


def found(fault: Fault, bed: Bed, work: Path) -> tuple[jobs.Result, list[str]]:
    """Run `cpudist test`; return how it ended, and what it said: its findings, or its errors where it has none."""
    file = work.with_name("cluster.json")
    work.mkdir(parents=True)
    bed.limit(_RATE, burst=_BURST)
    bed.limit(fault.link, *fault.broken.split(), burst=_BURST)
    for host, commands in fault.commands.items():
        done = bed.run(host, ["sh", "-ec", commands], timeout=30, cwd=work)
        assert done.returncode == 0, done.output
    command = [str(jobs.BIN / "cpudist"), "test", "--json", str(file)]
    command += ["--interface", fault.interface] if fault.interface else []
    command += ["--hostfile", bed.hostfile()] if fault.launched else []
    command = command if fault.launched else [*mpirun_on(bed, "intel", 1), *command]
    with control_group() as group:
        if fault.confined:
            group.limit("cpu", cpu__cfs_quota_us="6000", cpu__max="6000 100000")
            bed.join(fault.broken, group)
        result = bed.run("h0", command, 400, {"XDG_CACHE_HOME": str(work.parent)}, work)
    if not (file.exists() and file.read_text()):
        return result, re.findall(_OWN_LINES, result.stderr, re.MULTILINE)
    findings = json.loads(file.read_text())["findings"]
    return result, [f"{finding['about']}: {finding['message']}" for finding in findings]


@pytest.mark.parametrize(
    ("own_bed", "fault"), [(fault.hosts, fault) for fault in FAULTS.values()], ids=[*FAULTS], indirect=["own_bed"]
)
def test_the_broken_host_is_named(own_bed: Bed, fault: Fault, tmp_path: Path) -> None:
    if "nft " in str(fault.commands) and shutil.which("nft") is None:
        pytest.skip("nft (Debian: nftables) is not installed")
    result, said = found(fault, own_bed, tmp_path / "above" / "work")
    assert result.returncode != 0, result.output
    broken = fault.broken.split()
    for name in broken:
        assert any(re.search(fault.says.replace("{}", name), line) for line in said), result.output
    named = [set(re.findall(r"\bh\d\b", line.partition(": ")[0])) for line in said]
    assert not any(hosts and not hosts & {*broken} for hosts in named), said


@pytest.mark.parametrize("own_bed", [3, 4] * 5, indirect=True)
def test_nothing_is_found_on_whole_hosts(own_bed: Bed, tmp_path: Path) -> None:
    """However busy the machine is."""
    result, said = found(Fault("", ""), own_bed, tmp_path / "above" / "work")
    assert (result.returncode, said) == (0, []), result.output
