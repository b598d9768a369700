"""Print facts about this host; `cpudist.hosts.check` runs this on each host of a job and compares the facts."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import psutil

from cpudist.doctor.usable_backends import why_not_ccl
from cpudist.doctor.versions import installed
from cpudist.errors import UserError
from cpudist.store.serve import listen
from cpudist.topology import measured_ranks
from cpudist.topology.identity import addresses, node_identity, resolved
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import Part, PlanOptions, make_plan
from cpudist.version import __version__

_CONNECT_SECONDS = 5.0  # the kernel repeats a lost packet after one second and after three


def main() -> None:
    """Print the facts as one line of JSON; arguments as for `facts`."""
    print(json.dumps(facts(*sys.argv[1:])))


def facts(
    port: str, folder: str, script: str = "", probe: str = "", interface: str = "", *starter: str
) -> dict[str, Any]:
    """Return the fields of `cpudist.hosts.check.Facts`.

    Args:
        port: port of the starting host to which this host connects.
        folder: the working folder of the job.
        script: the script's path, which may be relative to the folder; empty where the job has none.
        probe: a file in the starting host's working folder; empty: do not look for it.
        interface: network interface for the connection; empty: any.
        starter: name or addresses of the starting host; none: do not connect.
    """
    return {
        "identity": node_identity(),
        "python": platform.python_version(),
        "cpudist": __version__,
        "torch": installed("torch"),
        "ccl": why_not_ccl(),
        "seconds": time.time(),
        "memory": psutil.virtual_memory().available,
        "folder": os.path.isdir(folder),
        "ranks": _ranks(),
        "script": _checksum(os.path.join(folder, script)) if script else None,
        "shared": not probe or os.path.exists(probe),
        **_connect(starter, int(port), interface),
    }


def _connect(starter: Sequence[str], port: int, interface: str) -> dict[str, Any]:
    """Connect to the host that starts the job, and let it connect to a port here; return the result as fields."""
    failures = []
    for name in starter:
        try:
            source = (addresses(interface)[0], 0) if interface else None
            with listen([], 0)[0] as own, socket.create_connection((name, port), _CONNECT_SECONDS, source) as other:
                other.settimeout(6 * _CONNECT_SECONDS)  # the starting host may be busy
                other.sendall(b"%d\n" % own.getsockname()[1])
                return {"lets_in": bool(other.recv(1))}
        except (OSError, UserError) as error:
            failures.append(f"{', '.join(sorted(resolved(name))) or name} port {port}: {error}")
    return {"unreachable": ", ".join(failures)}


def _checksum(path: str) -> str | None:
    """Return a checksum of a file; None where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _ranks() -> dict[str, int]:
    """Return the number of ranks for each --ppn ("socket", "numa", "l3"), and the default."""
    machine = this_machine()
    ranks = {part: len(make_plan(machine, PlanOptions(part)).ranks) for part in get_args(Part)}
    return {**ranks, "default": measured_ranks.load() or ranks["numa"]}
