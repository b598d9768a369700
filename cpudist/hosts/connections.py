"""Choose the pairs of hosts that try to connect, and find the hosts that explain the failed connections."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpudist.findings import Finding
from cpudist.hosts.remote import names, place
from cpudist.launchers.mpi_launcher import Host

_MOST_IN_ALL_PAIRS = 32
_REMEDY = "open ports 1024 to 65535 between hosts, or mend the address (/etc/hosts, --interface) or route (ip route)"
_FABRICS = Path("/sys/class/infiniband")  # adapters of InfiniBand, Omni-Path, RoCE and EFA
_MTU_REMEDY = "set the network's MTU on all hosts: ip link set eth0 mtu 1500"


@dataclass(frozen=True)
class Trial:
    """An attempt of one host to connect to another."""

    source: Host
    target: Host
    interface: str  # the target's interface; empty: its usual address
    error: str  # empty if the connection succeeded


def partners(own: int, count: int) -> list[int]:
    """Return the numbers of the hosts to which host `own` of `count` connects.

    These are all others, or about log2(count) of more than 32; host 0, which starts the job, is always among them.
    """
    if count <= _MOST_IN_ALL_PAIRS:
        return [number for number in range(count) if number != own]
    near = {(own + (1 << power)) % count for power in range((count - 1).bit_length())}
    return sorted((near | {0}) - {own})


def unconnected(failed: Mapping[tuple[Host, Host], str], hosts: Sequence[Host]) -> Iterator[tuple[Host, Finding]]:
    """Yield the host with most failed connections, and its finding; repeat this without its connections.

    `failed`: (source, target) -> why the connection fails. The first of `hosts` starts the job and is never yielded.
    """
    here, *others = hosts
    left = dict(failed)
    while left:
        counts = Counter(host for pair in left for host in pair)
        host = max(others, key=lambda one: (counts[one], hosts.index(one)))
        sends = {other: why for (one, other), why in left.items() if one == host}
        receives = [one for one, other in left if other == host]
        others_ends = [other for other in hosts if other in sends or other in receives]
        who = "this host" if here in others_ends else names(others_ends)
        if sends:
            message = f"cannot connect to {who} at {sends.get(here) or next(iter(sends.values()))}"
        else:
            message = f"does not let {who} connect to its free ports"
        remedy = _MTU_REMEDY if "MTU" in message else _REMEDY  # facts.py writes "MTU" if large packets get lost
        yield host, Finding("error", place(host), message, remedy)
        left = {pair: why for pair, why in left.items() if host not in pair}


def judge_networks(trials: Sequence[Trial]) -> tuple[list[Finding], str | None]:
    """Return a warning for each interface that leads nowhere, and the interface that the job must use (None: any).

    A library that chooses a failing interface waits there until its timeout. If some fail and only one interface
    connects all hosts, the job must use it. But with fabric adapters on this host (InfiniBand, …) it may use any.
    """
    dead = {trial.interface: trial for trial in reversed(trials) if trial.error}
    hosts = {trial.target for trial in trials}
    reached = Counter(name for _, name in {(trial.target, trial.interface) for trial in trials})
    live = sorted(name for name, count in reached.items() if count == len(hosts) and name not in dead)
    only = live[0] if dead and len(live) == 1 and not (_FABRICS.is_dir() and any(_FABRICS.iterdir())) else None
    findings = []
    for name, trial in dead.items():
        by_hand = f"choose one by --interface {' or '.join(live)}" if live else f"take it down: ip link set {name} down"
        remedy = f"the job uses only {only}; to choose another one, give --interface" if only else by_hand
        message = f"leads nowhere: {names([trial.source])} cannot connect to {trial.target.name} at {trial.error}"
        findings.append(Finding("warning", f"interface {name}", message, remedy))
    return findings, only
