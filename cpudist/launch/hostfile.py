"""Hostfiles: reads the forms that people have, finds what is wrong before any rank starts, writes what each MPI takes.

One host a line, by name or address, with or without the number of ranks that it takes; ``#`` starts a comment::

    node0
    node1:4                # Intel MPI's and MPICH's form
    node2 slots=4          # Open MPI's
    10.0.0.4:4
    fd00::5 slots=4        # after a bare IPv6 address ":4" would be a part of it
    [fd00::6]:4

The launchers themselves take wrong files silently: Intel MPI drops a line that it does not understand, MPICH starts all
ranks at home when the file is empty, and Open MPI misreads ``10.0.0.4:4``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cpudist.errors import UserError

Mpi = Literal["intel-mpi", "mpich", "open-mpi"]

# What takes the file that `write` makes. Intel MPI's -f reads "node1:4" too, but does not heed the 4.
OPTION: dict[Mpi, str] = {"intel-mpi": "-machinefile", "mpich": "-f", "open-mpi": "--hostfile"}

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.IGNORECASE)
_NUMBER = re.compile(r"0*[1-9][0-9]{0,5}")
_ZONE = re.compile(r"[^%]*(%[a-z0-9_.-]+)?", re.IGNORECASE)
_FORMS = "write one host a line, as node0, node0:4 or node0 slots=4"


@dataclass(frozen=True)
class Host:
    """A host's name or address, how many ranks it takes (None: not said), and where that was read, for messages."""

    name: str
    slots: int | None = None
    where: str = field(default="hostfile", compare=False)


def read(path: str | Path) -> list[Host]:
    """Return the hosts of a file, in its order.

    Raises:
        UserError: the file cannot be read, or is wrong as `parse` says.
    """
    try:
        return parse(Path(path).read_text("utf-8-sig"), str(path))
    except OSError as error:
        raise UserError(f"cannot read the hostfile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"the hostfile {path} is not a text file; {_FORMS}") from None


def parse(text: str, source: str = "hostfile") -> list[Host]:
    """Return the hosts that a file's text names, in its order; messages call the file `source`.

    Raises:
        UserError: a line is not understood, a host stands there twice, or there is none.
    """
    hosts: dict[object, Host] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        host = _parse_line(content, f"{source}, line {number}")
        first = hosts.setdefault(_identity(host.name), host)
        if first is not host:
            raise UserError(
                f"{host.where}: {host.name} stands in {first.where.rpartition(', ')[2]} already; "
                f"name it once, with all its ranks: {host.name} slots=2"
            )
    if not hosts:
        raise UserError(f"{source} names no host; {_FORMS}")
    return list(hosts.values())


def spread(hosts: Sequence[Host], ranks: int | None = None, per_host: int | None = None) -> list[Host]:
    """Return the hosts that a job needs, each with the number of ranks that it gets.

    Hosts are filled one after the other, each with `per_host` ranks or, without it, with its slots. `ranks` is the
    number of all, at least 1; None: as many as there is room for.

    Raises:
        UserError: there is no room for so many, or nothing says how many a host takes.
    """
    filled: list[Host] = []
    left = ranks
    for host in hosts:
        room = _room(host, per_host)
        if left is not None:
            room = min(room, left)
            left -= room
        if room:
            filled.append(replace(host, slots=room))
    if left:
        room = sum(host.slots or 0 for host in filled)
        raise UserError(
            f"{ranks} ranks do not fit on {len(hosts)} hosts with room for {room}; "
            "add hosts to the hostfile, or let them take more ranks"
        )
    return filled


def write(hosts: Sequence[Host], mpi: Mpi) -> str:
    """Return the text of a hostfile for `OPTION` of this MPI; every host needs its number of ranks, as from `spread`.

    Raises:
        UserError: this MPI does not take an address of that kind.
    """
    lines: list[str] = []
    for host in hosts:
        assert host.slots is not None
        if mpi == "intel-mpi":
            lines += [host.name] * host.slots  # it has no way to write both an IPv6 address and a number
        elif ":" in host.name:
            raise UserError(
                f"{host.where}: {mpi} takes no IPv6 addresses; give {host.name} a name in /etc/hosts and write that"
            )
        else:
            lines.append(f"{host.name}:{host.slots}" if mpi == "mpich" else f"{host.name} slots={host.slots}")
    return "".join(f"{line}\n" for line in lines)


def _parse_line(content: str, where: str) -> Host:
    word, *rest = content.split(maxsplit=1)
    name, slots = _split_word(word, where)
    if rest:
        match = re.fullmatch(r"slots\s*=\s*(\S+)", rest[0])
        if match is None:
            raise UserError(f"{where}: {rest[0]!r} is not understood; {_FORMS}")
        if slots is not None:
            raise UserError(f"{where}: says twice how many ranks {name} takes; {_FORMS}")
        slots = match[1]
    if not (_address(name) or _is_name(name)):
        raise UserError(f"{where}: {name!r} is neither a host name nor an address; {_FORMS}")
    if slots is not None and not _NUMBER.fullmatch(slots):
        raise UserError(f"{where}: {slots!r} is not a number of ranks; write {name} slots=4")
    return Host(name, int(slots) if slots else None, where)


def _split_word(word: str, where: str) -> tuple[str, str | None]:
    """The host and the text of its slots: ``node0:4``, ``[fd00::6]:4``, or without slots."""
    if match := re.fullmatch(r"\[(.*)\](?::(.*))?", word):
        if ":" not in match[1]:
            raise UserError(f"{where}: brackets are for IPv6 addresses; {_FORMS}")
        return match[1], match[2]
    if _address(word):
        return word, None
    name, colon, slots = word.rpartition(":")
    if ":" in name:
        raise UserError(f"{where}: {word!r} is not an IPv6 address; with a number of ranks write [fd00::6]:4")
    return (name, slots) if colon else (word, None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if _ZONE.fullmatch(text) else None
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    """Whether this is a host's name. What ends in a number is an address for the resolver, and not a right one here."""
    return bool(_NAME.fullmatch(text)) and ".." not in text and not text.rpartition(".")[2].isdigit()


def _identity(name: str) -> object:
    """Equal for two ways to write one host: names do not know upper from lower case, addresses have several forms."""
    return _address(name) or name.lower()


def _room(host: Host, per_host: int | None) -> int:
    if per_host is None:
        if host.slots is None:
            raise UserError(
                f"{host.where}: nothing says how many ranks {host.name} takes; write {host.name} slots=4, or give --ppn"
            )
        return host.slots
    if host.slots is not None and per_host > host.slots:
        raise UserError(
            f"{host.where}: {host.name} takes {host.slots} ranks, and --ppn asks for {per_host}; change one of them"
        )
    return per_host
