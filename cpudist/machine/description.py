"""A machine as ranks are placed on it: this one with what limits this process, or another one from a file."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cpudist.errors import UserError
from cpudist.machine import hwloc, lscpu, sysfs
from cpudist.machine.files import Files, Folder, open_copy
from cpudist.machine.limits import Limits, read_limits
from cpudist.machine.topology import Topology


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


def machine_from(path: Path) -> Machine:
    """Another machine from a file: a copy of sysfs (folder or tar archive), ``lscpu -p``, or hwloc's XML.

    Limits are those that the copy shows: of the process that made it, or none.

    Raises:
        UserError: the file is missing or is none of these.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist; give a copy of sysfs, the output of `lscpu -p`, or hwloc's XML")
    if path.is_dir() or tarfile.is_tarfile(path):
        try:
            return _from_copy(open_copy(path))
        except ValueError as error:
            raise UserError(f"{path} holds a file that the kernel would not write ({error}): copy it again") from None
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


def _from_copy(files: Files) -> Machine:
    return Machine(sysfs.read_topology(files), read_limits(files, None, env={}))
