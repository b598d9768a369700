"""Facts about a host. `check.py` runs this module on each host of a job, and compares what the hosts print."""

import fcntl
import hashlib
import json
import os
import platform
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_args

import psutil

from cpudist.doctor.resources import free_shared_memory, quota, shared_memory
from cpudist.doctor.usable_backends import why_not_ccl
from cpudist.doctor.versions import installed
from cpudist.errors import UserError, cause_and_remedy
from cpudist.findings import Finding
from cpudist.pinning import measured_ranks
from cpudist.pinning.plan import Part, PlanOptions, make_plan
from cpudist.store.server import listen
from cpudist.topology.identity import addresses, networks, node_identity
from cpudist.topology.machine import cpu_quota, this_machine
from cpudist.version import __version__
from cpudist.waiting import poll

_CONNECT_SECONDS = 5.0  # the kernel repeats a lost packet after one second and after three
_TRIAL_BYTES = 32 << 10  # more than a packet of jumbo frames (9000), and less than a receive buffer


@dataclass(frozen=True)
class Facts:
    """A host's report about itself."""

    identity: str  # the same text for all names of one machine
    # Versions of Python and of packages; cpudist's includes a checksum of its code. None: not installed.
    versions: dict[str, str | None]
    cores: int  # the number of cores that ranks may use
    seconds: float  # the time of its clock, since the epoch
    memory: int  # free memory in bytes
    folder: bool  # whether the starting host's working folder exists here
    # The number of ranks for each --ppn ("socket", "numa", "l3"), and the "default" without --ppn.
    ranks: dict[str, int]
    # A checksum of the job's script; None if the job has no script, or the host cannot read it.
    script: str | None = None
    shared: bool = True  # whether it shares the starting host's working folder; True if not checked
    # Where other hosts reach it during the check; the address is empty if the interface of --interface has none.
    address: str = ""
    port: int = 0
    networks: dict[str, str] = field(default_factory=dict)  # an address of each of its network interfaces
    # Faults that it has found itself, such as a full /dev/shm; each message completes "this host has …".
    findings: list[Finding] = field(default_factory=list)
    # Offset of its clock from the asking host's in seconds; 0 if the delay of its answer can explain the offset.
    skew: float = 0.0


def main() -> None:
    """Print this host's facts as a line of JSON. Then, for each line of input, connect to the hosts that it lists.

    Arguments: as for `facts`. Input: a list of [names or addresses, port]. Output: why each connection failed, or "".
    """
    interface = sys.argv[4]
    with listen([], 0)[0] as own:
        print(json.dumps(asdict(replace(facts(*sys.argv[1:]), port=own.getsockname()[1]))), flush=True)
        for line in sys.stdin:
            hosts = json.loads(line)
            with ThreadPoolExecutor(max(len(hosts), 1)) as pool:
                errors = pool.map(lambda host: _connect(host[0], host[1], interface), hosts)
                print(json.dumps(list(errors)), flush=True)


def facts(folder: str, script: str = "", probe: str = "", interface: str = "") -> Facts:
    """Return the facts of this host, without a port.

    Args:
        script: the script's path, which may be relative to the folder; empty where the job has none.
        probe: a file in the starting host's working folder; empty: do not look for it.
        interface: network interface for all connections; empty: any.
    """
    findings = list(_faults())
    try:
        # Use the address that ssh has reached; this host's other addresses may be those of bridges (docker0).
        ssh = os.environ.get("SSH_CONNECTION", "").split()
        address = ssh[2] if len(ssh) == 4 and not interface else addresses(interface or None)[0]
    except UserError as error:
        address = ""
        cause, remedy = cause_and_remedy(str(error))
        findings.append(Finding("error", "network", cause.partition(" has ")[2], remedy))  # without the host's name
    return Facts(
        node_identity(),
        versions={
            "python": platform.python_version(),
            "cpudist": f"{__version__} ({_code()})",
            **{name: installed(name) for name in ("torch", "transformers", "accelerate")},
        },
        cores=min(len(this_machine().usable.cores), max(int(cpu_quota() or sys.maxsize), 1)),
        seconds=time.time(),
        memory=psutil.virtual_memory().available,
        folder=os.path.isdir(folder),
        ranks=_ranks(),
        script=_checksum(os.path.join(folder, script)) if script else None,
        shared=not probe or os.path.exists(probe),
        address=address,
        networks=networks(),
        findings=findings,
    )


def _faults() -> Iterator[Finding]:
    """Yield findings of this host; each message completes the sentence "this host has …"."""
    if reason := why_not_ccl():
        yield Finding("warning", "backend", "no usable backend ccl", reason)
    for finding in (shared_memory(free_shared_memory()), quota(cpu_quota())):
        if finding.level != "ok":
            yield finding


def _connect(names: Sequence[str], port: int, interface: str) -> str:
    """Connect to one of the names or addresses; return an empty text, or why none answers."""
    failures = []
    for name in names:
        address = name
        try:
            # Like Hydra's daemons, try only the first address of a name, an IPv4 address if it has any.
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            address = str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
            source = (addresses(interface)[0], 0) if interface else None
            with socket.create_connection((address, port), _CONNECT_SECONDS, source) as connection:
                connection.sendall(bytes(_TRIAL_BYTES))
                if not poll(lambda: not _unacknowledged(connection), _CONNECT_SECONDS):
                    raise OSError("large packets get lost, since the MTU on the way is smaller than this host's")
        except (OSError, UserError) as error:
            failures.append(f"{address} port {port}: {error.args[-1]}")
        else:
            return ""
    return ", ".join(failures)


def _unacknowledged(connection: socket.socket) -> int:
    """Return how many sent bytes the other host's kernel has not acknowledged, whether or not a program reads them."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def _code() -> str:
    """Return a checksum of cpudist's code, because two hosts' copies of one version may differ."""
    found = Path(__file__).parents[1].rglob("*")
    files = sorted(path for path in found if path.suffix in (".py", ".cpp", ".hpp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def _checksum(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _ranks() -> dict[str, int]:
    """Return the number of ranks for each --ppn ("socket", "numa", "l3"), and the default."""
    machine = this_machine()
    ranks = {part: len(make_plan(machine, PlanOptions(part)).ranks) for part in get_args(Part)}
    return {**ranks, "default": measured_ranks.load() or ranks["numa"]}
