"""What every launcher answers: how is it called, and what does it say when a rank dies."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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


def describe(deaths: Sequence[Death], first_gone: Mapping[str, int | None]) -> str:
    """Which rank a signal has ended, in words; empty where there was none.

    A launcher ends the others with SIGKILL and may report these deaths like the first, so another signal tells more.
    Of several ranks that have died of SIGKILL on several hosts none is named here: the survivors say who it was.

    Args:
        deaths: what the launcher says.
        first_gone: for each host the rank that ended first there.
    """
    telling = [death for death in deaths if death.number != signal.SIGKILL] or list(deaths)
    if not telling:
        return ""
    first = telling[0]
    ranks = {death.rank for death in telling} & set(first_gone.values())
    hosts = {death.host for death in telling}
    if len(telling) > 1 and len(hosts) == 1 and len(ranks) == 1:
        first = next(death for death in telling if death.rank in ranks)
    elif len(telling) > 1:
        first = Death(first.number)
    rank = first_gone.get(first.host or "") if first.rank is None else first.rank
    who = "a rank" if rank is None else f"rank {rank}"
    where = f" on {first.host}" if first.host else ""
    name = signal.Signals(first.number).name if first.number in set(signal.Signals) else f"signal {first.number}"
    hint = " (dmesg there tells whether memory ran out)" if first.number == signal.SIGKILL else ""
    return f"{who}{where} was killed by {name}{hint}"
