"""Whether this host's name leads to an address, which MPI and gloo look up when they start."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.machine.files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """The name of this host, resolved."""
    yield resolve(socket.gethostname())


def resolve(name: str) -> Finding:
    """What looking up the name of this host says."""
    try:
        found = sorted({str(answer[4][0]) for answer in socket.getaddrinfo(name, None)})
    except OSError as error:
        return Finding(
            "error",
            "host name",
            f"this host's name {name!r} leads to no address ({error.strerror or error}), so gloo and MPI cannot start",
            f"add a line with its address to /etc/hosts: ADDRESS {name}",
        )
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        return Finding(
            "warning",
            "host name",
            f"this host's name {name!r} leads only to itself ({', '.join(found)}): enough for a job on one host",
            f"for jobs on several hosts, give {name} the address that the others use in /etc/hosts",
        )
    return Finding("ok", "host name", f"{name} is {', '.join(found)}")
