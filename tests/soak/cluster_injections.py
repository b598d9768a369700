"""Break a host of several in ways that `cpudist test` must name, run it on whole hosts too, and print what it said.

    python tests/soak/cluster_injections.py [--clean 20] [INJECTION ...]

As root, with Debian's nftables; the hosts are namespaces of this machine and share its cores. An injection is found if
`cpudist test` fails and says the expected words. It is rightly named if it names no whole host. On whole hosts it must
find nothing, however busy the machine is. What a run wrote goes to standard error where it was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import jobs
from bed import Bed, missing
from control_group import control_group
from mpis import mpirun_on

import cpudist.version
from cpudist.doctor.versions import installed

_SECONDS = 400.0  # of one run, at most
_RATE, _BURST = "100mbit", "32kb"  # of a whole link; a larger burst hides a limit from short messages
_PERIOD = 100_000  # of a control group's quota, in microseconds
_OWN_LINES = r"^cpudist\w*: (?!checking |connecting |starting |\d+ ranks on |completed )(.*)$"


class Hosts:
    """Hosts of a bed, on which `cpudist test` runs."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._top = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.folder = self._top / "work"  # that they work in
        for folder in (self.folder, self._top / "bed"):
            folder.mkdir()
        self.group = stack.enter_context(control_group())
        self.bed = stack.enter_context(Bed(self._top / "bed", count))
        self.bed.limit(_RATE, burst=_BURST)
        self.confined = ""  # the host in that group

    def sh(self, host: str, *commands: str) -> None:
        """Run commands of a shell on a host."""
        result = self.bed.run(host, ["sh", "-ec", "\n".join(commands)], timeout=30, cwd="/")
        assert result.returncode == 0, result.output

    def test(self, injection: Injection) -> tuple[jobs.Result, list[str]]:
        """Run `cpudist test`; return how it ended, and what it said: its findings, or its errors where it has none."""
        file = self._top / "cluster.json"
        command = [str(jobs.BIN / "cpudist"), "test", "--json", str(file)]
        command += ["--interface", injection.interface] if injection.interface else []
        if injection.launched:
            command += ["--hostfile", self.bed.hostfile()]
        else:
            command = [*mpirun_on(self.bed, "intel", 1), *command]
        command = self.group.inside(command) if self.confined == "h0" else command
        result = self.bed.run("h0", command, _SECONDS, {"XDG_CACHE_HOME": str(self._top)}, self.folder)
        if not (file.exists() and file.read_text()):
            return result, re.findall(_OWN_LINES, result.stderr, re.MULTILINE)
        findings = json.loads(file.read_text())["findings"]
        return result, [f"{finding['about']}: {finding['message']}" for finding in findings]


# Ways to break a host


def link(hosts: Hosts, name: str, rate: str) -> None:
    hosts.bed.limit(rate, name, burst=_BURST)


def sending(hosts: Hosts, name: str, rate: str, interface: str = "eth0") -> None:
    hosts.sh(name, f"tc qdisc replace dev {interface} root tbf rate {rate} burst {_BURST} latency 20ms")


def sending_to(hosts: Hosts, name: str, other: str, rate: str) -> None:
    address = hosts.bed.addresses[other][0]
    hosts.sh(
        name,
        "tc qdisc replace dev eth0 root handle 1: htb default 1",
        f"tc class add dev eth0 parent 1: classid 1:1 htb rate {_RATE}",
        f"tc class add dev eth0 parent 1: classid 1:2 htb rate {rate} ceil {rate}",
        f"tc filter add dev eth0 parent 1: protocol ip u32 match ip dst {address} flowid 1:2",
    )


def quota(hosts: Hosts, name: str, cores: float) -> None:
    """So few that it is slow although all hosts share a busy machine."""
    used = str(round(cores * _PERIOD))
    hosts.group.limit("cpu", cpu__cfs_quota_us=used, cpu__max=f"{used} {_PERIOD}")
    hosts.bed.join(name, hosts.group)
    hosts.confined = name


def closed(hosts: Hosts, name: str, ports: str, verdict: str = "drop") -> None:
    """A firewall that lets in nothing new at these ports."""
    hosts.sh(
        name,
        "nft add table inet wall",
        "nft 'add chain inet wall in { type filter hook input priority 0; }'",
        "nft add rule inet wall in iif lo accept",
        "nft add rule inet wall in ct state established,related accept",
        f"nft add rule inet wall in tcp dport {ports} {verdict}",
    )


def second_network(hosts: Hosts, names: str, slow: str = "") -> None:
    """An interface eth1 on some hosts, which is slow on one of them."""
    for name in names.split():
        address = hosts.bed.addresses[name][0].replace("10.77.", "10.88.")
        hosts.sh(name, "ip link add eth1 link eth0 type macvlan mode bridge", f"ip address add {address}/24 dev eth1")
        hosts.sh(name, "ip link set eth1 up")
    if slow:
        sending(hosts, slow, "15mbit", "eth1")


def no_route(hosts: Hosts) -> None:
    """The second network of h2 is another one than that of the others."""
    second_network(hosts, "h0 h1 h2")
    hosts.sh("h2", "ip address flush dev eth1", "ip address add 10.99.0.12/24 dev eth1")


def no_route_between(hosts: Hosts) -> None:
    """h1 and h2 reach h0, and not each other."""
    hosts.sh("h1", f"ip route add blackhole {hosts.bed.addresses['h2'][0]}")


def docker(hosts: Hosts) -> None:
    """Docker's bridge, which has the same address on every host."""
    for name in hosts.bed.addresses:
        hosts.sh(name, "ip link add docker0 type bridge", "ip address add 172.17.0.1/16 dev docker0")
        hosts.sh(name, "ip link set docker0 up")


def wrong_address(hosts: Hosts, name: str, other: str) -> None:
    """A host knows another by an address that nobody has."""
    hosts.sh(
        name,
        f"sed 's/^[0-9.]* {other}$/10.77.0.99 {other}/' /etc/hosts > /run/hosts",
        "mount --bind /run/hosts /etc/hosts",
    )


def full_memory(hosts: Hosts, name: str, size: int, left: int) -> None:
    """/dev/shm of this size, of which so much is left, in MB."""
    hosts.sh(name, f"mount -o remount,size={size}M /dev/shm", f"fallocate -l {size - left}M /dev/shm/other")


def version(hosts: Hosts, name: str, file: str | Path, line: str) -> None:
    """Another version of a package: this line in one of its files."""
    start = line.partition("0.0.1")[0]
    hosts.sh(name, f"sed 's/^{start}.*/{line}/' {file} > /run/version", f"mount --bind /run/version {file}")


def own_folder(hosts: Hosts, *names: str) -> None:
    for name in names:
        hosts.sh(name, f"mount -t tmpfs tmpfs {hosts.folder}")


def no_folder(hosts: Hosts, name: str) -> None:
    top = hosts.folder.parent
    hosts.sh(name, f"mkdir /run/empty; cp -r {top}/bed /run/empty; mount --bind /run/empty {top}")


@dataclass(frozen=True)
class Injection:
    """A way to break hosts.

    Attributes:
        broken: names of the broken hosts, with spaces.
        says: what must be said of each broken host, a regular expression with {} for its name; empty: nothing.
        strike: breaks them.
        words: arguments of `strike`.
        hosts: number of hosts.
        launched: whether `cpudist launch` starts the ranks, or the user's mpirun.
        interface: which one `cpudist test` is told to use.
    """

    broken: str
    says: str
    strike: Callable[..., None]
    words: tuple[Any, ...] = ()
    hosts: int = 3
    launched: bool = True
    interface: str = ""

    def judge(self, said: list[str]) -> str:
        """Return what is wrong with what was said; empty where nothing is."""
        broken = self.broken.split()
        expected = [self.says.replace("{}", name) for name in broken]
        missed = [words for words in expected if not any(re.search(words, line) for line in said)]
        named = {line: set(re.findall(r"\bh\d\b", line.partition(": ")[0])) for line in said}
        others = [line for line, hosts in named.items() if hosts and not hosts & set(broken)]
        return "; ".join([*(f"missed: {words}" for words in missed), *(f"misnamed: {line}" for line in others)])


_SLOW = r"{}: has 0\.\d+ of the others' speed in float32.*quota of 0.06"
_CPUDIST = (cpudist.version.__file__, '__version__ = "0.0.1"')
_TORCH = (distribution("torch").locate_file(f"torch-{installed('torch')}.dist-info/METADATA"), "Version: 0.0.1")
_CLOSED, _AWAY = "{} does not let this host connect to its free ports", "{} cannot connect to this host at "
_ALL = "1024-65535"  # ports
_LINK = "{}: sends and receives at"

INJECTIONS = {
    "link h2 of 3": Injection("h2", _LINK, link, ("h2", "10mbit")),
    "link h0 of 4": Injection("h0", _LINK, link, ("h0", "25mbit"), hosts=4, launched=False),
    "sending h1 of 3": Injection("h1", "{}: sends at", sending, ("h1", "20mbit")),
    "pair h1 to h3 of 4": Injection("h1", r"{} to h3: \d+", sending_to, ("h1", "h3", "15mbit"), hosts=4),
    "quota h2 of 3": Injection("h2", _SLOW, quota, ("h2", 0.06)),
    "quota h0 of 3": Injection("h0", _SLOW, quota, ("h0", 0.06), launched=False),
    "ports h1 of 3": Injection("h1", _CLOSED, closed, ("h1", _ALL)),
    "ports h0 of 3": Injection("h1 h2", _AWAY, closed, ("h0", _ALL)),
    "ports refused h2 of 3": Injection("h2", _CLOSED, closed, ("h2", _ALL, "reject with tcp reset")),
    "ports h3 of 4": Injection("h3", _CLOSED, closed, ("h3", "10000-65535"), hosts=4),
    "ports h1 of 3, mpirun": Injection("h1", "cpudist doctor --hostfile", closed, ("h1", _ALL), launched=False),
    "no route h1, h2 of 3": Injection("h2", "{} cannot connect to h1 at ", no_route_between),
    "no eth1 on h2 of 3": Injection(
        "h2", "{} has no network interface eth1", second_network, ("h0 h1",), interface="eth1"
    ),
    "eth1 of h2 leads nowhere": Injection("h2", _AWAY, no_route, interface="eth1"),
    "docker0 of 3": Injection("h1 h2", _AWAY, docker, interface="docker0"),
    "slow eth1 on h2 of 3": Injection("h2", "{}: sends", second_network, ("h0 h1 h2", "h2"), interface="eth1"),
    "h2 knows h0 wrongly": Injection("h2", _AWAY, wrong_address, ("h2", "h0")),
    "/dev/shm full h2 of 3": Injection("h2", "{} has .* free in /dev/shm", full_memory, ("h2", 64, 0)),
    "/dev/shm small h0 of 4": Injection(
        "h0", "{}: has .* free in /dev/shm", full_memory, ("h0", 64, 32), hosts=4, launched=False
    ),
    "cpudist h1 of 3": Injection("h1", "{} has cpudist 0.0.1", version, ("h1", *_CPUDIST)),
    "cpudist h2 of 4": Injection("h2", "{}: has cpudist 0.0.1", version, ("h2", *_CPUDIST), hosts=4, launched=False),
    "torch h2 of 3": Injection("h2", "{} has torch 0.0.1", version, ("h2", *_TORCH)),
    "folder h1, h2 of 4": Injection("h1 h2", "{}: does not share", own_folder, ("h1", "h2"), hosts=4),
    "no folder h2 of 3": Injection("h2", "{} has no folder", no_folder, ("h2",)),
}


def run(name: str) -> tuple[str, float, list[str], jobs.Result]:
    """Run an injection, or none; return what was wrong, the seconds, what was said, and the output."""
    injection = INJECTIONS.get(name) or Injection("", "", lambda _hosts: None, hosts=int(name[0]))
    with ExitStack() as stack:
        hosts = Hosts(injection.hosts, stack)
        injection.strike(hosts, *injection.words)
        begin = time.monotonic()
        result, said = hosts.test(injection)
        seconds = time.monotonic() - begin
    wrong = injection.judge(said)
    if (result.returncode == 0) != (not injection.says):
        wrong = f"exit status {result.returncode}; {wrong}"
    return wrong, seconds, said, result


def main() -> None:
    """Print a table; exit with status 1 if an injection was missed or misnamed, or a whole host was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=20, metavar="RUNS", help="runs on whole hosts")
    parser.add_argument("injection", nargs="*", metavar="INJECTION", help=f"of {', '.join(INJECTIONS)}; all by default")
    options = parser.parse_args()
    if reason := missing() or (None if shutil.which("nft") else "no nft; apt-get install nftables"):
        sys.exit(reason)
    names = options.injection or list(INJECTIONS)
    clean = [f"{3 + number % 2} whole hosts, {number + 1}" for number in range(options.clean)]
    print("| injection | right | seconds | load | said |\n|---|---|---|---|---|", flush=True)
    times, bad = [], 0
    for name in [*names, *clean]:
        wrong, seconds, said, result = run(name)
        times.append(seconds)
        bad += bool(wrong)
        words = "; ".join(said)[:160].replace("|", "/")
        print(f"| {name} | {wrong or 'yes'} | {seconds:.0f} | {os.getloadavg()[0]:.1f} | {words} |", flush=True)
        if wrong:
            print(f"{name}: {wrong}\n{result.output}", file=sys.stderr, flush=True)
    print(f"\n{len(times) - bad} of {len(times)} right, {min(times):.0f} to {max(times):.0f} s each")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
