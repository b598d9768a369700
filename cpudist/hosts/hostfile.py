"""Read hostfiles, spread a job's ranks over their hosts, and write the hostfile that an MPI reads.

A line names a host or its address, with or without its number of ranks; ``#`` starts a comment::

    node0
    node1:4                # Intel MPI's and MPICH's form
    node2 slots=4          # Open MPI's
    10.0.0.4:4
    fd00::5 slots=4        # ":4" after a bare IPv6 address would belong to the address
    [fd00::6]:4
    node3:4 share=0.1      # --balance begins with a tenth of all samples for its ranks

The MPIs do not report mistakes: Intel MPI ignores a line that it does not understand, MPICH starts all ranks on this
host if the file is empty, and Open MPI misreads ``10.0.0.4:4``.
"""

import ipaddress
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpudist.errors import UserError
from cpudist.launchers.mpi_launcher import Host, MpiLauncher

_NUMBER = "0*[1-9][0-9]{0,5}"
_IPV6 = "[0-9a-f:.]*:[0-9a-f:.]*(%[a-z0-9_.-]+)?"
_LINE = re.compile(
    rf"(?:(?P<name>[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)(:(?P<short>{_NUMBER}))?"
    rf"|\[(?P<bracketed>{_IPV6})\](:(?P<after>{_NUMBER}))?|(?P<bare>{_IPV6}))(?P<slots>\s+slots\s*=\s*{_NUMBER})?"
    r"(\s+share\s*=\s*(?P<share>0?\.[0-9]*[1-9][0-9]*))?",
    re.IGNORECASE | re.ASCII,
)
_FORMS = "write one host a line, as node0, node0:4, node0 slots=4 or [fd00::6]:4"


def read(path: str | Path) -> list[Host]:
    """Return the hosts of a file, as `parse` does; a file that cannot be read is a `UserError`, too."""
    try:
        text = Path(path).read_text("utf-8-sig")
        if str(path) == os.environ.get("PBS_NODEFILE"):  # PBS names a host once for each of its mpiprocs
            text = "".join(f"{host} slots={n}\n" if n > 1 else f"{host}\n" for host, n in Counter(text.split()).items())
        return parse(text, str(path))
    except OSError as error:
        remedy = "give the path of a file with one host a line"
        raise UserError(f"cannot read the hostfile {path}: {error.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"the hostfile {path} is not a text file; {_FORMS}") from None


def parse(text: str, source: str = "hostfile") -> list[Host]:
    """Return the hosts that the text of a hostfile names, in its order; a wrong line is a `UserError`."""
    hosts: dict[object, Host] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        host = _parse_line(content, f"{source}, line {number}")
        first = hosts.setdefault(_address(host.name) or host.name.lower(), host)  # an address has several spellings
        if first is not host:
            remedy = f"name it once, with all its ranks: {host.name} slots=2"
            raise UserError(f"{host.where}: {host.name} is already in {first.where.rpartition(', ')[2]}; {remedy}")
    if not hosts:
        raise UserError(f"{source} names no host; {_FORMS}")
    return list(hosts.values())


def spread(hosts: Sequence[Host], ranks: int | None = None, per_host: int | None = None) -> list[Host]:
    """Return the hosts that a job needs, each with its number of ranks as `slots`. Hosts are filled in order.

    Args:
        ranks: total number of ranks, at least 1; None: all that the hosts take. `UserError` if they take fewer.
        per_host: the number of ranks on each host; None: its slots.
    """
    filled: list[Host] = []
    left = ranks
    for host in hosts:
        slots = room(host, per_host)
        if left is not None:
            slots = min(slots, left)
            left -= slots
        if slots:
            filled.append(replace(host, slots=slots))
    if left:
        most = sum(host.slots or 0 for host in filled)
        remedy = "add hosts to the hostfile, or let them take more ranks"
        raise UserError(f"{ranks} ranks do not fit on {len(hosts)} hosts with room for {most}; {remedy}")
    return filled


def shares(hosts: Sequence[Host]) -> list[float]:
    """Return the part of all samples with which each host begins; empty if no host has a `share`.

    Hosts without a `share` divide the rest in proportion to their numbers of ranks.
    """
    given, others = [host for host in hosts if host.share], [host for host in hosts if not host.share]
    rest = 1 - sum(host.share or 0.0 for host in given)
    if rest < -0.01 or (others and rest <= 0.01 * bool(given)):
        raise UserError(f"{given[-1].where}: the shares leave {rest:.2g} of all samples to the other hosts; give less")
    ranks = sum(host.slots or 1 for host in others)
    return [host.share or rest * (host.slots or 1) / ranks for host in hosts] if given else []


def write(hosts: Sequence[Host], mpi: type[MpiLauncher]) -> str:
    """Return the text of an MPI's hostfile with these hosts; `UserError` for an IPv6 address that it does not take."""
    for host in hosts:
        if ":" in host.name and not mpi.takes_ipv6:
            remedy = f"give {host.name} a name in /etc/hosts and write that"
            raise UserError(f"{host.where}: {mpi.name} takes no IPv6 addresses; {remedy}")
    return "".join(f"{line}\n" for host in hosts for line in mpi.hostfile_lines(host))


def _parse_line(content: str, where: str) -> Host:
    found = match.groupdict() if (match := _LINE.fullmatch(content)) else {}
    name = found.get("name") or found.get("bracketed") or found.get("bare") or ""
    slots = [number for form in ("short", "after", "slots") if (number := found.get(form))]
    if len(slots) > 1 or not (_address(name) or _is_name(name)):
        raise UserError(f"{where}: {content!r} is not understood; {_FORMS}")
    share = found.get("share")
    return Host(name, int(slots[0].rpartition("=")[2]) if slots else None, where, float(share) if share else None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    """Return whether this is a host name. The resolver would take a name whose last part is a number for an address."""
    return bool(text) and ":" not in text and ".." not in text and not text.rpartition(".")[2].isdigit()


def room(host: Host, per_host: int | None) -> int:
    """Return the number of ranks on `host`: `per_host`, or the hostfile's number if `per_host` is None."""
    if per_host is None:
        if host.slots is None:
            remedy = f"write {host.name} slots=4, or give --ppn"
            raise UserError(f"{host.where}: the number of ranks on {host.name} is missing; {remedy}")
        return host.slots
    if host.slots is not None and per_host > host.slots:
        remedy = "change one of them"
        raise UserError(f"{host.where}: {host.name} takes {host.slots} ranks, and --ppn asks for {per_host}; {remedy}")
    return per_host
