"""Break a host of several in ways that `cpudist test` must name, run it on whole hosts too, and print what it said.

    python tests/soak/cluster_injections.py [--clean 20] [INJECTION ...]

As root, with Debian's nftables; the hosts are namespaces of this machine and share its cores. An injection is found if
`cpudist test` fails and says the expected words. It is rightly named if it names no whole host. On whole hosts it must
find nothing, however busy the machine is. What a run wrote goes to standard error where it was wrong.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import jobs
from bed import Bed, missing
from control_group import control_group
from mpis import mpirun_on

import cpudist.version
from cpudist.doctor.versions import installed

_SECONDS = 400.0  # of one run, at most
_RATE, _BURST = "100mbit", "32kb"  # of a whole link; a larger burst hides a limit from short messages
_OWN_LINES = r"^cpudist\w*: (?!checking |connecting |starting |\d+ ranks on |completed )(.*)$"


@dataclass(frozen=True)
class Injection:
    """A way to break hosts.

    Attributes:
        broken: names of the broken hosts, with spaces.
        says: what must be said of each broken host, a regular expression with {} for its name; empty: nothing.
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

    def judge(self, said: list[str]) -> str:
        """Return what is wrong with what was said; empty where nothing is."""
        broken = self.broken.split()
        expected = [self.says.replace("{}", name) for name in broken]
        missed = [words for words in expected if not any(re.search(words, line) for line in said)]
        named = {line: set(re.findall(r"\bh\d\b", line.partition(": ")[0])) for line in said}
        others = [line for line, hosts in named.items() if hosts and not hosts & set(broken)]
        return "; ".join([*(f"missed: {words}" for words in missed), *(f"misnamed: {line}" for line in others)])


def sending(rate: str, interface: str = "eth0") -> str:
    return f"tc qdisc replace dev {interface} root tbf rate {rate} burst {_BURST} latency 20ms\n"


def closed(ports: str, verdict: str = "drop") -> str:
    """A firewall that lets in nothing new at these ports."""
    return f"""
        nft add table inet wall
        nft 'add chain inet wall in {{ type filter hook input priority 0; }}'
        nft add rule inet wall in iif lo accept
        nft add rule inet wall in ct state established,related accept
        nft add rule inet wall in tcp dport {ports} {verdict}
    """


def added(interface: str, kind: str, address: str) -> str:
    return f"ip link add {interface} {kind}; ip address add {address} dev {interface}; ip link set {interface} up\n"


def full_memory(size: int, left: int) -> str:
    """/dev/shm of this size, of which so much is left, in MB."""
    return f"mount -o remount,size={size}M /dev/shm; fallocate -l {size - left}M /dev/shm/other"


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
_SECOND = {f"h{n}": added("eth1", "link eth0 type macvlan mode bridge", f"10.88.0.1{n}/24") for n in range(3)}
_NOWHERE = {"h2": _SECOND["h2"].replace("10.88", "10.99")}
_DOCKER = dict.fromkeys(("h0", "h1", "h2"), added("docker0", "type bridge", "172.17.0.1/16"))  # the same everywhere
_WRONG = "sed 's/^[0-9.]* h0$/10.77.0.99 h0/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"
_OWN = "mount -t tmpfs tmpfs $PWD"
_NONE = "mkdir /run/empty; cp -r ../bed /run/empty; mount --bind /run/empty ${PWD%/*}"
_CPUDIST = version(cpudist.version.__file__, '__version__ = "0.0.1"')
_METADATA = str(distribution("torch").locate_file(f"torch-{installed('torch')}.dist-info/METADATA"))
_TORCH = version(_METADATA, "Version: 0.0.1")

_SLOW = r"{}: has 0\.\d+ of the others' speed in float32.*quota of 0.06"
_CLOSED, _AWAY = "{} does not let this host connect to its free ports", "{} cannot connect to this host at "
_ALL = "1024-65535"  # ports
_LINK = "{}: sends and receives at"

INJECTIONS = {
    "link h2 of 3": Injection("h2", _LINK, link="10mbit"),
    "link h0 of 4": Injection("h0", _LINK, link="25mbit", hosts=4, launched=False),
    "sending h1 of 3": Injection("h1", "{}: sends at", {"h1": sending("20mbit")}),
    "pair h1 to h3 of 4": Injection("h1", r"{} to h3: \d+", {"h1": _TO_H3}, hosts=4),
    "quota h2 of 3": Injection("h2", _SLOW, confined=True),
    "quota h0 of 3": Injection("h0", _SLOW, confined=True, launched=False),
    "ports h1 of 3": Injection("h1", _CLOSED, {"h1": closed(_ALL)}),
    "ports h0 of 3": Injection("h1 h2", _AWAY, {"h0": closed(_ALL)}),
    "ports refused h2 of 3": Injection("h2", _CLOSED, {"h2": closed(_ALL, "reject with tcp reset")}),
    "ports h3 of 4": Injection("h3", _CLOSED, {"h3": closed("10000-65535")}, hosts=4),
    "ports h1 of 3, mpirun": Injection("h1", "cpudist doctor --hostfile", {"h1": closed(_ALL)}, launched=False),
    "no route h1, h2 of 3": Injection("h2", "{} cannot connect to h1 at ", {"h1": "ip route add blackhole 10.77.0.12"}),
    "no eth1 on h2 of 3": Injection(
        "h2", "{} has no network interface eth1", {**_SECOND, "h2": "true"}, interface="eth1"
    ),
    "eth1 of h2 leads nowhere": Injection("h2", _AWAY, {**_SECOND, **_NOWHERE}, interface="eth1"),
    "docker0 of 3": Injection("h1 h2", _AWAY, _DOCKER, interface="docker0"),
    "slow eth1 on h2 of 3": Injection(
        "h2", "{}: sends", {**_SECOND, "h2": _SECOND["h2"] + sending("15mbit", "eth1")}, interface="eth1"
    ),
    "h2 knows h0 wrongly": Injection("h2", _AWAY, {"h2": _WRONG}),
    "/dev/shm full h2 of 3": Injection("h2", "{} has .* free in /dev/shm", {"h2": full_memory(64, 0)}),
    "/dev/shm small h0 of 4": Injection(
        "h0", "{}: has .* free in /dev/shm", {"h0": full_memory(64, 32)}, hosts=4, launched=False
    ),
    "cpudist h1 of 3": Injection("h1", "{} has cpudist 0.0.1", {"h1": _CPUDIST}),
    "cpudist h2 of 4": Injection("h2", "{}: has cpudist 0.0.1", {"h2": _CPUDIST}, hosts=4, launched=False),
    "torch h2 of 3": Injection("h2", "{} has torch 0.0.1", {"h2": _TORCH}),
    "folder h1, h2 of 4": Injection("h1 h2", "{}: does not share", {"h1": _OWN, "h2": _OWN}, hosts=4),
    "no folder h2 of 3": Injection("h2", "{} has no folder", {"h2": _NONE}),
}


def run(injection: Injection) -> tuple[jobs.Result, list[str]]:
    """Run `cpudist test`; return how it ended, and what it said: its findings, or its errors where it has none."""
    with tempfile.TemporaryDirectory() as text, control_group() as group:
        top = Path(text)
        work, file = top / "work", top / "cluster.json"
        for folder in (work, top / "bed"):
            folder.mkdir()
        with Bed(top / "bed", injection.hosts) as bed:
            bed.limit(_RATE, burst=_BURST)
            bed.limit(injection.link, *injection.broken.split(), burst=_BURST)
            for host, commands in injection.commands.items():
                done = bed.run(host, ["sh", "-ec", commands], timeout=30, cwd=work)
                assert done.returncode == 0, done.output
            command = [str(jobs.BIN / "cpudist"), "test", "--json", str(file)]
            command += ["--interface", injection.interface] if injection.interface else []
            command += ["--hostfile", bed.hostfile()] if injection.launched else []
            command = command if injection.launched else [*mpirun_on(bed, "intel", 1), *command]
            if injection.confined:
                group.limit("cpu", cpu__cfs_quota_us="6000", cpu__max="6000 100000")
                bed.join(injection.broken, group)
                command = group.inside(command) if injection.broken == "h0" else command
            result = bed.run("h0", command, _SECONDS, {"XDG_CACHE_HOME": text}, work)
        if not (file.exists() and file.read_text()):
            return result, re.findall(_OWN_LINES, result.stderr, re.MULTILINE)
        findings = json.loads(file.read_text())["findings"]
        return result, [f"{finding['about']}: {finding['message']}" for finding in findings]


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
        injection = INJECTIONS.get(name) or Injection("", "", hosts=int(name[0]))
        begin = time.monotonic()
        result, said = run(injection)
        times.append(seconds := time.monotonic() - begin)
        wrong = injection.judge(said)
        if (result.returncode == 0) == bool(injection.says):
            wrong = f"exit status {result.returncode}; {wrong}"
        bad += bool(wrong)
        words = "; ".join(said)[:160].replace("|", "/")
        print(f"| {name} | {wrong or 'yes'} | {seconds:.0f} | {os.getloadavg()[0]:.1f} | {words} |", flush=True)
        if wrong:
            print(f"{name}: {wrong}\n{result.output}", file=sys.stderr, flush=True)
    print(f"\n{len(times) - bad} of {len(times)} right, {min(times):.0f} to {max(times):.0f} s each")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
