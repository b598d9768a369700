"""Who a rank is: its place in the job, on its node, and among the nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from cpudist.environments import Placement
from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """This rank's place in the job.

    Attributes:
        rank, size: of the whole job; ranks count from 0.
        local_rank, local_size: among the ranks of this node.
        node_rank, node_count: nodes are numbered by their lowest rank, unless the launcher numbers them.
        launcher: what started the job, such as "intel-mpi".
        backend: what the ranks compute together on, such as "ccl"; empty before it is chosen.
        hosts: the host name of every node, by node rank; two nodes may have the same name.
        device_type: of this rank's tensors, "cpu" for all CPU backends.
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

    def __repr__(self) -> str:
        return (
            f"World(rank={self.rank}({self.size}), local_rank={self.local_rank}({self.local_size}), "
            f"node={self.node_rank}({self.node_count}), backend={self.backend!r}, launcher={self.launcher!r})"
        )


@dataclass(frozen=True)
class Member:
    """What one rank tells the others about itself when the job starts.

    Attributes:
        node: a text that is the same for ranks that share a machine's memory, and different otherwise.
        host: the machine's name, for people.
        placement: what the launcher says.
        cpus: the logical CPUs that it may use.
        threads: how many threads of it compute.
        interactive: whether it is a notebook or the like, which an exception does not end.
    """

    node: str
    host: str
    placement: Placement
    cpus: tuple[int, ...] = ()
    threads: int = 1
    interactive: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Member:
        fields = json.loads(text)
        placement, cpus = Placement(**fields.pop("placement")), tuple(fields.pop("cpus"))
        return cls(placement=placement, cpus=cpus, **fields)


@dataclass
class _Node:
    """Ranks that share a node, in rank order, with the local rank that the launcher gave each."""

    identity: str
    host: str
    ranks: list[int]
    local_ranks: list[int | None]
    local_size: int | None
    number: int | None

    def takes(self, member: Member) -> bool:
        place = member.placement
        if place.node_rank is not None or self.number is not None:
            return place.node_rank == self.number
        # The same machine may stand for several nodes: then local ranks repeat.
        taken = place.local_rank is not None and place.local_rank in self.local_ranks
        return self.identity == member.node and self.local_size == place.local_size and not taken


def assign_nodes(members: Sequence[Member], launcher: str) -> list[World]:
    """Give every rank its place on its node, from what all ranks say of themselves, in rank order.

    Nodes are told apart by `Member.node` and not by host names: two nodes may have the same name.

    Raises:
        UserError: the ranks do not make up whole nodes of the sizes that the launcher gave.
    """
    nodes: list[_Node] = []
    for rank, member in enumerate(members):
        node = next((node for node in nodes if node.takes(member)), None)
        if node is None:
            place = member.placement
            node = _Node(member.node, member.host, [], [], place.local_size, place.node_rank)
            nodes.append(node)
        node.ranks.append(rank)
        node.local_ranks.append(member.placement.local_rank)
    if all(node.number is not None for node in nodes):
        nodes.sort(key=lambda node: node.number or 0)
    for node in nodes:
        _check_whole(node, launcher)
    blank = World(0, len(members), 0, 1, 0, len(nodes), launcher, hosts=tuple(node.host for node in nodes))
    places = {
        rank: replace(
            blank,
            rank=rank,
            local_rank=position if given is None else given,
            local_size=len(node.ranks),
            node_rank=node_rank,
        )
        for node_rank, node in enumerate(nodes)
        for position, (rank, given) in enumerate(zip(node.ranks, node.local_ranks, strict=True))
    }
    return [places[rank] for rank in range(len(members))]


def elsewhere(members: Sequence[Member], world: World, nodes_asked_for: int | None) -> str:
    """In what the ranks run elsewhere than their launcher promises, and what to do; empty where they do not.

    Args:
        members: what all ranks say of themselves, in rank order.
        world: any rank's, as `assign_nodes` made it of that.
        nodes_asked_for: on how many nodes the user wanted them, where that is known.
    """
    remedy = "look at the hostfile, which cpudist doctor --hostfile checks"
    machines = {member.node: member.host for member in members}
    where = ", ".join(machines.values())
    numbered = members[0].placement.node_rank is not None  # whoever numbers nodes may mean several on one machine
    if len(machines) < world.node_count and not numbered:
        return f"{world.launcher} takes {where} for {world.node_count} hosts, so ranks share cores; {remedy}"
    if nodes_asked_for is not None and len(machines) < nodes_asked_for:
        return f"{world.launcher} was asked for {nodes_asked_for} hosts, but all ranks run on {where}; {remedy}"
    return ""


def _check_whole(node: _Node, launcher: str) -> None:
    if node.local_size is not None and node.local_size != len(node.ranks):
        raise UserError(
            f"{launcher} says that {node.local_size} ranks run on {node.host}, but {len(node.ranks)} are there "
            f"(ranks {', '.join(map(str, node.ranks))}); start all ranks with one launcher, in a fresh shell"
        )
    given = [local_rank for local_rank in node.local_ranks if local_rank is not None]
    if given and sorted(given) != list(range(len(node.ranks))):
        raise UserError(
            f"{launcher} gives the ranks on {node.host} the local ranks {given}; "
            f"they should be 0 to {len(node.ranks) - 1}, each once"
        )
