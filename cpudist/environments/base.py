"""What every environment answers: which rank is this process, and how do the ranks meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cpudist.errors import UserError


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


@dataclass(frozen=True)
class OverMpi:
    """The ranks meet in the MPI world that the launcher has made.

    Attributes:
        library: the MPI library that belongs to the launcher; None where the one that mpi4py finds by itself is right.
        mpich_abi: whether that library has MPICH's binary interface, as Intel MPI has, and Open MPI has not.
    """

    library: str | None = None
    mpich_abi: bool = True


@dataclass(frozen=True)
class AtAddress:
    """The ranks meet in a store at a TCP address.

    Attributes:
        host, port: where.
        served: whether somebody else serves a store there, as torchrun's agent does; otherwise rank 0 has to.
        token: what whoever connects must know; empty where the user has set none (CPUDIST_TOKEN).
    """

    host: str
    port: int
    served: bool = False
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class InStore:
    """The ranks meet in the job's own store, which whoever started them serves.

    Attributes:
        host, port: where.
        job: of all that meet there, one after the other, which.
        token: what whoever connects must know; may be empty.
    """

    host: str
    port: int
    job: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Alone:
    """There is nobody to meet."""


Rendezvous = OverMpi | AtAddress | InStore | Alone


class Environment(ABC):
    """One way in which processes are started, and the variables that say so.

    Args:
        variables: the environment variables of the process; they are copied.
    """

    name: ClassVar[str]
    # What the launcher sets for each rank and does not have itself; None where ranks are not told apart on a node.
    rank_variable: ClassVar[str | None] = None

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    @classmethod
    @abstractmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        """Whether these are the variables of a process that was started in this way."""

    @abstractmethod
    def placement(self) -> Placement:
        """Which rank this process is.

        Raises:
            UserError: a variable is missing or not a number, or variables contradict each other.
        """

    @abstractmethod
    def rendezvous(self) -> Rendezvous:
        """How the ranks find each other.

        Raises:
            UserError: a variable is missing or makes no sense, or the launcher cannot work as it was started.
        """

    @property
    def restarts(self) -> int:
        """How often this job has been started again: `cpudist launch` says so, and some launchers by themselves."""
        return self.optional_integer("CPUDIST_RESTART_COUNT") or 0

    @property
    def nodes_asked_for(self) -> int | None:
        """Over how many nodes the user has asked the launcher to spread the ranks; None where that is not known."""
        return None

    @property
    def rank(self) -> int | None:
        """This process's rank; None where the variables make no sense."""
        try:
            return self.placement().rank
        except UserError:
            return None

    @property
    def speaks(self) -> bool:
        """Whether this process prints what all ranks would print alike: rank 0 does."""
        return self.rank in (0, None)

    @property
    def token(self) -> str:
        """What the user has set for whoever wants to join the job; empty if nothing."""
        return self._variables.get("CPUDIST_TOKEN", "")

    def integer(self, name: str) -> int:
        """The value of a variable that the launcher must have set to a number."""
        value = self.optional_integer(name)
        if value is None:
            raise UserError(
                f"{self.name} started this process, but {name} is not set: start all ranks with the launcher itself,"
                " or unset its other variables to run alone"
            )
        return value

    def optional_integer(self, name: str) -> int | None:
        """The value of a variable that the launcher sets to a number, if at all."""
        text = self._variables.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise UserError(
                f"{name}={text!r} is not a whole number, but {self.name} sets it to one: unset it in the job's scripts"
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
