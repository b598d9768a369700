"""A rank's place in the job, on its node and among the nodes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from cpudist import typed_json
from cpudist.errors import UserError
from cpudist.launchers import Launcher, Placement, one_world
from cpudist.topology.identity import node_identity
from cpudist.topology.machine import allowed_cpus

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """This rank's place in the job.

    Attributes:
        rank, size: this rank in the whole job, from 0, and the number of ranks.
        local_rank, local_size: the same among the ranks of this node.
        node_rank, node_count: this node's number, from the launcher or by its lowest rank, and the number of nodes.
        launcher: the launcher of the job, such as "intel-mpi".
        backend: how the ranks communicate, such as "ccl"; empty before it is chosen.
        hosts: the host name of every node, by node rank; two nodes may have the same name.
        device_type: the type of device of this rank's tensors; "cpu" for all CPU backends.

    Examples:
        Under ``mpirun -n 2 python``:

        >>> world = cpudist.init()
        >>> world.size, world.local_size, world.node_count, world.device
        (2, 2, 1, device(type='cpu'))
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    node_count: int
    launcher: str
    backend: str = ""
    hosts: tuple[str, ...] = ()
    device_type: str = "cpu"

    @property
    def device(self) -> torch.device:
        """The device on which this rank keeps its model and its batches."""
        import torch

        return torch.device(self.device_type)

    @property
    def placement(self) -> Placement:
        return Placement(
            self.rank, self.size, self.local_rank, self.local_size, node_rank=self.node_rank, node_count=self.node_count
        )

    def __repr__(self) -> str:
        ranks = f"rank={self.rank}({self.size}), local_rank={self.local_rank}({self.local_size})"
        node = f"node={self.node_rank}({self.node_count})"
        return f"World({ranks}, {node}, backend={self.backend!r}, launcher={self.launcher!r})"


@dataclass(frozen=True)
class RankInfo:
    """One rank's description of itself, published when the job starts."""

    node: str  # a text that identifies the machine; equal on all ranks that share memory
    host: str  # the machine's name
    placement: Placement  # the rank's numbers from the launcher
    cpus: tuple[int, ...] = ()  # the logical CPUs that it may use
    threads: int = 1  # the number of its computing threads
    interactive: bool = False  # whether it is a notebook or an interactive session, which an exception does not end
    restarts: int = 0  # how often the job has been restarted, as this rank's launcher counts
    # The names that this rank's launcher gives the run; see `Launcher.run_ids`.
    run_ids: dict[str, bool] = field(default_factory=dict)
    # The variables of all launchers in the rank's environment, before the job changes them; see `one_world`.
    variables: dict[str, str] = field(default_factory=dict)
    not_passed_on: frozenset[str] = frozenset()  # see `Launcher.not_passed_on`

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=sorted)

    @classmethod
    def from_json(cls, text: str) -> RankInfo:
        """Read a description that `to_json` has written; UserError if another version of cpudist has written it."""
        try:
            return typed_json.read(cls, typed_json.last_line(text))
        except ValueError:
            raise UserError("a rank runs another version of cpudist; install the same one on all hosts") from None


@dataclass
class _Node:
    """The ranks of one node, in rank order, each with its local rank from the launcher."""

    first: RankInfo
    ranks: list[int] = field(default_factory=list)
    local_ranks: list[int | None] = field(default_factory=list)

    def takes(self, member: RankInfo) -> bool:
        own, place = self.first.placement, member.placement
        if place.node_rank is not None or own.node_rank is not None:
            return place.node_rank == own.node_rank
        # One machine may appear as several nodes: then local ranks repeat.
        taken = place.local_rank is not None and place.local_rank in self.local_ranks
        return self.first.node == member.node and own.local_size == place.local_size and not taken


def name_of(world: World) -> str:
    """Return a rank's name in messages: "rank 1 on h0"."""
    return f"rank {world.rank} on {world.hosts[world.node_rank]}"


def gather_rank_info(
    launcher: Launcher, interactive: bool, all_gather: Callable[[str, str], list[str]]
) -> tuple[World, list[RankInfo]]:
    """Publish this rank's description; return this rank's `World`, and the descriptions of all ranks, in rank order.

    Raises:
        UserError: the ranks of a node contradict the launcher's numbers.
        StartupTimeout: a rank did not arrive in time.
    """
    import torch

    placement = launcher.placement()
    host, cpus, threads = socket.gethostname(), tuple(allowed_cpus()), torch.get_num_threads()
    variables = {name: os.environ[name] for name in one_world.NAMES if name in os.environ}
    of_launcher = launcher.restarts, launcher.run_ids, variables, launcher.not_passed_on
    own = RankInfo(node_identity(), host, placement, cpus, threads, interactive, *of_launcher)
    members = [RankInfo.from_json(text) for text in all_gather("member", own.to_json())]
    return assign_nodes(members, launcher.name)[placement.rank], members


def assign_nodes(members: Sequence[RankInfo], launcher: str) -> list[World]:
    """Return every rank's place in the job and on its node, in rank order.

    Ranks to which the launcher gives the same node rank are on one node; without node ranks, `RankInfo.node` decides,
    because two nodes may have the same host name. `members` are in rank order. UserError as in `gather_rank_info`.
    """
    nodes: list[_Node] = []
    for rank, member in enumerate(members):
        node = next((node for node in nodes if node.takes(member)), None)
        if node is None:
            node = _Node(member)
            nodes.append(node)
        node.ranks.append(rank)
        node.local_ranks.append(member.placement.local_rank)
    if all(member.placement.node_rank is not None for member in members):
        nodes.sort(key=lambda node: node.first.placement.node_rank or 0)
    hosts = tuple(node.first.host for node in nodes)
    worlds = []
    for node_rank, node in enumerate(nodes):
        _check_whole(node, launcher)
        for position, (rank, given) in enumerate(zip(node.ranks, node.local_ranks, strict=True)):
            local = (position if given is None else given, len(node.ranks))
            worlds.append(World(rank, len(members), *local, node_rank, len(nodes), launcher, hosts=hosts))
    return sorted(worlds, key=lambda world: world.rank)


def corrected_variables(members: Sequence[RankInfo], launcher: str) -> list[str]:
    """Return the names of the launchers' variables that described another rank than the one that had them."""
    places = zip(assign_nodes(members, launcher), members, strict=True)
    return sorted({name for world, one in places for name in one_world.corrected(world.placement, one.variables)})


def elsewhere(members: Sequence[RankInfo], world: World, requested_nodes: int | None) -> str:
    """Return a sentence if the ranks do not run where the launcher says they do; empty otherwise.

    `world` is any rank's place; `requested_nodes` is the number that the user asked for, None if unknown.
    """
    remedy = "look at the hostfile, which cpudist doctor --hostfile checks"
    machines = {member.node: member.host for member in members}
    where = ", ".join(machines.values())
    # A launcher that numbers nodes may place several on one machine.
    numbered = members[0].placement.node_rank is not None
    if len(machines) < world.node_count and not numbered:
        return f"{world.launcher} counts {where} as {world.node_count} hosts, so ranks share cores; {remedy}"
    if requested_nodes is not None and len(machines) < requested_nodes:
        return f"{world.launcher} was asked for {requested_nodes} hosts, but all ranks run on {where}; {remedy}"
    return ""


def _check_whole(node: _Node, launcher: str) -> None:
    host, local_size = node.first.host, node.first.placement.local_size
    if local_size is not None and local_size != len(node.ranks):
        found = f"{len(node.ranks)} are there (ranks {', '.join(map(str, node.ranks))})"
        why = f"{launcher} says that {local_size} ranks run on {host}, but {found}"
        raise UserError(f"{why}; start all ranks with one launcher, in a fresh shell")
    given = [local_rank for local_rank in node.local_ranks if local_rank is not None]
    if given and sorted(given) != list(range(len(node.ranks))):
        why = f"{launcher} gives the ranks on {host} the local ranks {given}, not 0 to {len(node.ranks) - 1}, each once"
        raise UserError(f"{why}; start all ranks with one launcher, in a fresh shell")
