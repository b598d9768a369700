"""What every launcher answers: which rank is this process, and how do the ranks meet.

A launcher is read from environment variables alone. Nothing here starts processes, opens connections or imports torch
or MPI.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from cpudist.errors import UserError

Rendezvous = Literal["mpi", "env", "slurm", "single"]


@dataclass(frozen=True)
class Placement:
    """The rank of this process as its launcher gives it; None is what the launcher does not say.

    Raises:
        UserError: the numbers contradict each other.
    """

    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    node_rank: int | None = None
    node_count: int | None = None

    def __post_init__(self) -> None:
        _check_pair("rank", self.rank, "size", self.size)
        _check_pair("local rank", self.local_rank, "local size", self.local_size)
        _check_pair("node rank", self.node_rank, "node count", self.node_count)
        if self.local_size is not None:
            self._check_room(self.local_size, self.node_count or 1)

    def _check_room(self, local_size: int, node_count: int) -> None:
        """This node's ranks and at least one on every other node must fit into the job."""
        least = local_size + node_count - 1
        if least > self.size or (self.node_count == 1 and local_size != self.size):
            nodes = "" if self.node_count is None else f" on {self.node_count} node(s)"
            raise _contradiction(f"{local_size} ranks on this node do not fit a job of {self.size}{nodes}")


class Launcher(ABC):
    """One way in which processes are started."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        """Whether this launcher started the process."""

    @classmethod
    @abstractmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        """Which rank this process is.

        Raises:
            UserError: a variable is missing or not a number, or variables contradict each other.
        """

    @classmethod
    @abstractmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        """How the ranks find each other."""

    @classmethod
    def libmpi(cls, env: Mapping[str, str]) -> str | None:
        """The MPI library that belongs to this launcher; None where the one that mpi4py finds by itself is right."""
        return None

    @classmethod
    def integer(cls, env: Mapping[str, str], name: str) -> int:
        """The value of a variable that the launcher must have set to a number."""
        value = cls.optional_integer(env, name)
        if value is None:
            raise UserError(
                f"{cls.name} started this process, but {name} is not set: start all ranks with the launcher itself,"
                " or unset its other variables to run alone"
            )
        return value

    @classmethod
    def optional_integer(cls, env: Mapping[str, str], name: str) -> int | None:
        """The value of a variable that the launcher sets to a number, if at all."""
        text = env.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise UserError(
                f"{name}={text!r} is not a whole number, but {cls.name} sets it to one: unset it in the job's scripts"
            ) from None


def _check_pair(index_name: str, index: int | None, count_name: str, count: int | None) -> None:
    if index is None and count is None:
        return
    if index is None or count is None:
        given, missing = (count_name, index_name) if index is None else (index_name, count_name)
        raise UserError(f"the launcher's variables give a {given} but no {missing}: set both or neither")
    if not 0 <= index < count:
        raise _contradiction(f"{index_name} {index} is not in 0..{count - 1} ({count_name} {count})")


def _contradiction(what: str) -> UserError:
    return UserError(
        f"the launcher's variables contradict each other: {what}; look for scripts that set them by hand or"
        " for a launcher inside another launcher"
    )
