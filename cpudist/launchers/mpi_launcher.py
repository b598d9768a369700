"""The base class of the launchers of MPI libraries, with which `cpudist launch` can start jobs."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cpudist.launchers.launcher import Launcher
from cpudist.processes.lost_ranks import LostRank


@dataclass(frozen=True)
class Host:
    """A host of a job."""

    name: str  # its name or address
    slots: int | None = None  # the number of ranks on it; None: not known
    where: str = field(default="hostfile", compare=False)  # the file and line that name it, for messages
    share: float | None = None  # the part of all samples with which its ranks begin under `--balance`; None: not given


@dataclass(frozen=True)
class MpirunOptions:
    """The options with which mpirun starts a job."""

    count: int
    program: Sequence[str]
    hostfile: str | None = None  # a file in the MPI's own form; None: all ranks run on this host
    slots: Sequence[int] = ()  # the number of ranks on each host of the file
    variables: Sequence[str] = ()  # names of the job's environment variables
    interface: str | None = None  # the network interface to use; None: the launcher chooses
    all_output: bool = False  # whether each line of output is marked with its rank
    only_ipv6: bool = False  # whether mpirun's host has only IPv6 addresses


class MpiLauncher(Launcher):
    """The launcher of an MPI library: its command line, its hostfile, its messages and its processes.

    `cpudist launch` leaves pinning to the ranks (`cpudist.pinning`) and switches the launcher's own pinning off.

    Attributes:
        option: its name for `--mpi`.
        programs: the names under which its mpirun is installed, the usual one first.
        hostfile_option: the option of mpirun that names a hostfile.
        takes_ipv6: whether its hostfile may name IPv6 addresses.
        by_name: whether its daemons connect to mpirun's host by host name, unless an interface is given.
        daemons: its programs between mpirun and the ranks.
        killed: pattern for a killed rank in its output, with the groups "signal", "host" and, except in MPICH, "rank".
        banner: pattern for its message about each failed rank on standard output, including ranks that it has killed
            itself; `cpudist launch` hides the messages and reports the first failed rank.
    """

    rank_variable: ClassVar[str]
    option: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    hostfile_option: ClassVar[str]
    takes_ipv6: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    daemons: ClassVar[tuple[str, ...]]
    killed: ClassVar[re.Pattern[str]]
    banner: ClassVar[re.Pattern[bytes] | None] = None

    @classmethod
    @abstractmethod
    def recognises(cls, version: str) -> bool:
        """Return whether this MPI's mpirun answers `--version` with this text."""

    @classmethod
    @abstractmethod
    def command(cls, program: Path, version: str, options: MpirunOptions) -> list[str]:
        """Return the command line of mpirun; it contains the names of `options.variables`, never their values."""

    @classmethod
    @abstractmethod
    def hostfile_lines(cls, host: Host) -> list[str]:
        """Return the lines of a host and its slots in this MPI's hostfile."""

    @classmethod
    def killed_ranks(cls, output: str) -> list[LostRank]:
        """Return the ranks that signals have killed, from the launcher's output, which may leave out the signal."""
        found = [match.groupdict() for match in cls.killed.finditer(output)]
        return [
            LostRank(int(one["signal"] or 0) or "ended", int(one["rank"]) if "rank" in one else None, one["host"])
            for one in found
        ]


@dataclass(frozen=True)
class Mpirun:
    """An MPI's mpirun on this machine: its path, and its answer to `--version`."""

    mpi: type[MpiLauncher]
    program: Path
    version: str = ""

    def command(self, options: MpirunOptions) -> list[str]:
        return self.mpi.command(self.program, self.version, options)
