"""A machine as ranks are placed on it: this one with what limits this process, or another one from a file."""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpudist.errors import UserError
from cpudist.machine import hwloc, lscpu, sysfs
from cpudist.machine.cpulist import LAST_CPU
from cpudist.machine.files import Folder, open_copy
from cpudist.machine.limits import Limits, read_limits
from cpudist.machine.topology import Topology

_LARGEST = 64 << 20  # bytes; real ones have some kilobytes


@dataclass(frozen=True)
class Machine:
    """All CPUs that are online, and what of them may be used."""

    topology: Topology
    limits: Limits

    @property
    def usable(self) -> Topology:
        """The CPUs that may be used."""
        cpus = self.limits.cpus
        return self.topology if cpus is None else self.topology.restricted_to(cpus)


def this_machine(env: Mapping[str, str] = os.environ) -> Machine:
    """This machine and the limits of this process.

    Raises:
        UserError: /sys is missing.
    """
    files = Folder(Path("/"))
    return Machine(sysfs.read_topology(files), read_limits(files, frozenset(os.sched_getaffinity(0)), env))


def own_numa_node() -> int | None:
    """The NUMA node that all CPUs of this process are in; None where they are in several, or /sys is missing."""
    try:
        return _own_topology().numa_node_of(os.sched_getaffinity(0))
    except UserError:
        return None


@cache
def _own_topology() -> Topology:
    return sysfs.read_topology(Folder(Path("/")))


def machine_from(path: Path) -> Machine:
    """Another machine from a file: a copy of sysfs (folder or tar archive), ``lscpu -p``, or hwloc's XML.

    Limits are those that the copy shows: of the process that made it, or none.

    Raises:
        UserError: the file is missing or is none of these.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; give a copy of sysfs, the output of `lscpu -p`, or hwloc's XML")
    if not path.is_dir() and not (path.is_file() and path.stat().st_size < _LARGEST):
        raise UserError(f"{path} is no description of a machine: those are folders, or files of less than 64 MiB")
    machine = _from_copy(path) if path.is_dir() or tarfile.is_tarfile(path) else _from_text(path)
    if max(machine.topology.cpus) > LAST_CPU:
        raise UserError(f"{path} names a CPU {max(machine.topology.cpus)}, which no machine has: make it again")
    return machine


def _from_copy(path: Path) -> Machine:
    try:
        files = open_copy(path)
        return Machine(sysfs.read_topology(files), read_limits(files, None, env={}))
    except ValueError as error:
        raise UserError(f"{path} holds a file that the kernel would not write ({error}): copy it again") from None
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut off ({error}): copy it again") from None


def _from_text(path: Path) -> Machine:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text: {error}") from None
    try:
        if text.lstrip().startswith("<"):
            found = hwloc.parse_machine(text)
            return Machine(found.topology, Limits(cpus=found.allowed))
        return Machine(lscpu.parse_topology(text), Limits())
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
