"""The interface of a launcher to its ranks: their placement and their rendezvous."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cpudist.errors import UserError
from cpudist.processes.attempt import RESTART_COUNT, RUN_ID

# From this id on, Slurm's steps are special ones (the batch script, an interactive shell), not those of srun.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class Placement:
    """The rank, local rank and node of this process, and their totals; None where its launcher does not give a number.

    Numbers that contradict each other are a UserError.
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
            # The job has this node's ranks and at least one rank on every other node.
            least = self.local_size + (self.node_count or 1) - 1
            if least > self.size or (self.node_count == 1 and self.local_size != self.size):
                nodes = "" if self.node_count is None else f" on {self.node_count} node(s)"
                raise _contradiction(f"{self.local_size} ranks on this node do not fit a job of {self.size}{nodes}")


@dataclass(frozen=True)
class OverMpi:
    """The ranks find each other in the MPI world that the launcher has made."""

    library: str | None = None  # the launcher's MPI library; None: the one that mpi4py finds by itself
    mpich_abi: bool = True  # whether that library has MPICH's binary interface. Intel MPI has it, Open MPI does not.


@dataclass(frozen=True)
class AtAddress:
    """The ranks find each other in a store at a TCP address."""

    host: str
    port: int
    # Whether torchrun's agent or another process outside the job serves the store; otherwise rank 0 does.
    served: bool = False
    # The secret that clients must have (CPUDIST_TOKEN); empty where the user has set none.
    token: str = field(default="", repr=False)
    # Whether the name server has known `host` since before the start; a pod's name appears later.
    name_known: bool = False


@dataclass(frozen=True)
class InStore:
    """The ranks find each other in the store of the process that started them, in the key namespace `job`."""

    host: str
    port: int
    job: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Alone:
    """There are no other ranks."""


RendezvousMethod = OverMpi | AtAddress | InStore | Alone


class Launcher(ABC):
    """A launcher, known to its ranks by the environment variables that it has set.

    Attributes:
        name: its name in the record and in messages.
        placement_variables: the environment variables of `Placement`'s fields, in order; rank and size must be set.
        rank_variable: a variable that the launcher sets for ranks only, with a different value for each rank of a node;
            None if there is none.
        restart_variable: the variable of the launcher's own number of restarts; empty if there is none.
    """

    name: ClassVar[str]
    placement_variables: ClassVar[tuple[str, ...]] = ()
    rank_variable: ClassVar[str | None] = None
    restart_variable: ClassVar[str] = ""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        """Return whether these are the variables of a process that this launcher started."""
        return cls.rank_variable in variables

    def placement(self) -> Placement:
        """Return the place of this process among the ranks; `UserError` if variables are missing or wrong."""
        rank, size, *others = self.placement_variables
        return Placement(self.integer(rank), self.integer(size), *map(self.optional_integer, others))

    @abstractmethod
    def rendezvous(self) -> RendezvousMethod:
        """Return how the ranks find each other; `UserError` if the launcher cannot work as it was started."""

    @property
    def waiting_agent(self) -> int | None:
        """Id of the launcher's process that would wait for ever if rank 0's host is lost; None if there is none."""
        return None

    @property
    def restarts(self) -> int:
        """How often the job has been restarted, by `cpudist launch` or by the launcher itself."""
        return sum(self.optional_integer(name) or 0 for name in (RESTART_COUNT, self.restart_variable))

    @property
    def run_ids(self) -> dict[str, bool]:
        """Unique names of this run, and for each whether an earlier attempt of this run may have had the same name."""
        found = {}
        job, step = self._variables.get("SLURM_JOB_ID"), self._variables.get("SLURM_STEP_ID", "")
        if job and step.isdigit() and int(step) < FIRST_SPECIAL_STEP:  # a requeued job keeps its ids
            found[f"slurm-{job}.{step}"] = self._variables.get("SLURM_RESTART_COUNT", "0") != "0"
        if named := self._variables.get(RUN_ID):
            found[named] = True
        return found

    @property
    def requested_nodes(self) -> int | None:
        """The number of nodes that the user has asked for; None: unknown."""
        return None

    @property
    def not_passed_on(self) -> frozenset[str]:
        """The variables of this process that the launcher does not pass on to other hosts."""
        return frozenset()

    def lacking(self, host: str, names: frozenset[str]) -> str:
        """Return a sentence if a rank on `host` lacks variables of this process; `names` is its own `not_passed_on`."""
        return ""

    @property
    def warning(self) -> str:
        """A sentence about a likely mistake in the start of this process; empty if there is none."""
        return ""

    @property
    def rank(self) -> int | None:
        """This process's rank; None where the variables are wrong."""
        try:
            return self.placement().rank
        except UserError:
            return None

    @property
    def is_main_process(self) -> bool:
        """Whether this process prints the lines for the whole job: rank 0, or a rank with wrong variables."""
        return self.rank in (0, None)

    @property
    def token(self) -> str:
        """The secret that the user has set for the job's store; see `token_in`."""
        return token_in(self._variables)

    @property
    def master_port(self) -> int | None:
        """The port in MASTER_PORT, or a `UserError`; None where it is not set, or empty."""
        text = self._variables.get("MASTER_PORT") or None
        if text is not None and not (text.isdecimal() and 0 < int(text) < 1 << 16):
            raise UserError(f"MASTER_PORT={text!r} is not a port number; set it to a free port of rank 0's host")
        return None if text is None else int(text)

    def integer(self, name: str) -> int:
        """Return the number in a variable that the launcher must have set; otherwise raise a `UserError`."""
        value = self.optional_integer(name)
        if value is None:
            why = f"{self.name} started this process, but {name} is not set"
            raise UserError(f"{why}; start all ranks with the launcher, or unset its other variables to run alone")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return the number in a variable, or raise a `UserError`; None where it is not set."""
        text = self._variables.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            remedy = "remove it from the job's scripts"
            raise UserError(f"{name}={text!r} is not a whole number, so {self.name} has not set it; {remedy}") from None


def token_in(variables: Mapping[str, str]) -> str:
    """Return the secret in CPUDIST_TOKEN; empty where it is not set. An empty value would let everybody join."""
    token = variables.get("CPUDIST_TOKEN")
    if token is not None and not token.strip():
        raise UserError("CPUDIST_TOKEN is empty; set it to one secret for all ranks, or unset it")
    return token or ""


def _check_pair(index_name: str, index: int | None, count_name: str, count: int | None) -> None:
    if index is None and count is None:
        return
    if index is None or count is None:
        given, missing = (count_name, index_name) if index is None else (index_name, count_name)
        raise UserError(f"the launcher's variables give a {given} but no {missing}: set both or neither")
    if not 0 <= index < count:
        raise _contradiction(f"{index_name} {index} is not in 0..{count - 1} ({count_name} {count})")


def _contradiction(what: str) -> UserError:
    remedy = "look for scripts that set them by hand or for a launcher inside another launcher"
    return UserError(f"the launcher's variables contradict each other: {what}; {remedy}")
