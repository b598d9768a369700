"""Whether this host's name resolves to an address; MPI and gloo look it up when they start."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.topology.files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the name of this host."""
    yield resolve(socket.gethostname())


def resolve(name: str) -> Finding:
    """Resolve `name`, the name of this host."""
    try:
        found = sorted({str(answer[4][0]) for answer in socket.getaddrinfo(name, None)})
    except OSError as error:
        return Finding(
            "error",
            "host name",
            f"this host's name {name!r} has no address ({error.strerror or error}), so gloo and MPI cannot start",
            f"add a line with its address to /etc/hosts: ADDRESS {name}",
        )
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        return Finding(
            "warning",
            "host name",
            f"this host's name {name!r} has only loopback addresses ({', '.join(found)}): enough for a job on one host",
            f"for jobs on several hosts, give {name} the address that the others use in /etc/hosts",
        )
    return Finding("ok", "host name", f"{name} resolves to {', '.join(found)}")
