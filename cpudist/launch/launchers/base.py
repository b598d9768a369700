"""What every launcher answers: how is it called, and what does it say when a rank dies."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cpudist.launch.hostfile import Host, Mpi


@dataclass(frozen=True)
class Start:
    """What is to be started.

    Attributes:
        hosts: each with its number of ranks, as from `hostfile.spread`.
        hostfile: a file that names them in the launcher's own form; None: all ranks run on this host.
        program: what every rank runs.
        variables: the names of the environment variables that are set, of which the ranks need some.
        interface: the network interface to use; None: the launcher chooses.
        all_output: mark each line of output with the rank that wrote it.
    """

    hosts: Sequence[Host]
    hostfile: str | None
    program: Sequence[str]
    variables: Sequence[str] = ()
    interface: str | None = None
    all_output: bool = False

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return sum(host.slots or 0 for host in self.hosts)


@dataclass(frozen=True)
class Death:
    """A rank that a signal ended, as far as the launcher says; `number` is the signal's."""

    number: int
    rank: int | None = None
    host: str | None = None


class Launcher(ABC):
    """One MPI's launcher on this machine; `program` is its path, `version` what it says to ``--version``."""

    mpi: ClassVar[Mpi]
    rank_variable: ClassVar[str]  # every rank has it, and nothing else that the launcher starts

    def __init__(self, program: Path, version: str) -> None:
        self.program = program
        self.version = version

    @classmethod
    @abstractmethod
    def answers(cls, version: str) -> bool:
        """Whether this is what this MPI's launcher says to ``--version``."""

    @abstractmethod
    def command(self, start: Start) -> list[str]:
        """The command line. Nothing in it is secret: variables are handed over by name."""

    @abstractmethod
    def deaths(self, said: str) -> list[Death]:
        """The ranks that signals have ended, from what the launcher wrote. It kills ranks itself, too."""


def describe(deaths: Sequence[Death], first: tuple[int, str] | None) -> str | None:
    """Which rank died, in words; None where no signal was involved.

    Args:
        deaths: what the launcher says.
        first: rank and host of the process that was gone first, if that was seen.
    """
    named = [death for death in deaths if death.rank is not None]
    if first is not None:
        death = next((death for death in named if death.rank == first[0]), None)
        if death is None and len(deaths) == 1 and not named:
            death = Death(deaths[0].number)
        if death is not None:
            return _sentence(*first, death.number)
    # The launcher ends the others with SIGKILL, so another signal tells more.
    telling = [death for death in deaths if death.number != signal.SIGKILL] or list(deaths)
    return _sentence(telling[0].rank, telling[0].host, telling[0].number) if len(telling) == 1 else None


def _sentence(rank: int | None, host: str | None, number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    hint = " (dmesg there tells whether memory ran out)" if number == signal.SIGKILL else ""
    return f"{'a rank' if rank is None else f'rank {rank}'} on {host or 'some host'} was killed by {name}{hint}"
